"""Message filters of commands: from their options to a subscription."""

import typer


def filter_of(topic: str, tags: str, sql: str | None) -> str:
    """Return the filter that `--tags` and `--sql` ask for.

    Raises:
        typer.BadParameter: `sql` is no expression, or stands beside tags.
    """
    if sql is None:
        return tags
    from rockoon.errors import InvalidExpression
    from rockoon.subscription import ALL, Sql, Subscription

    if tags != ALL:
        raise typer.BadParameter(
            "not together with --tags: write TAGS IN ('new', 'paid') in the expression",
            param_hint="--sql",
        )
    try:
        Subscription.sql(topic, sql)
    except InvalidExpression as failure:
        raise typer.BadParameter(str(failure), param_hint="--sql") from failure
    return Sql(sql)
