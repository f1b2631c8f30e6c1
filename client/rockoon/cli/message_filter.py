"""Message filters of commands: converts their options to a filter expression."""

import typer


def filter_of(topic: str, tags: str, sql: str | None) -> str:
    """Return the filter expression for `--tags` and `--sql`.

    Raises:
        typer.BadParameter: `sql` is not a valid expression, or tags are set too.
    """
    if sql is None:
        return tags
    from rockoon.errors import InvalidExpression
    from rockoon.subscription import ALL, Sql, Subscription

    if tags != ALL:
        raise typer.BadParameter(
            "cannot be combined with --tags: write TAGS IN ('new', 'paid') in the expression",
            param_hint="--sql",
        )
    try:
        Subscription.sql(topic, sql)
    except InvalidExpression as failure:
        raise typer.BadParameter(str(failure), param_hint="--sql") from failure
    return Sql(sql)
