"""One example for each command, shown by `--help`. A test parses each."""

from typing import Any

EXAMPLES = {
    "": "rockoon up --single",
    "up": "rockoon up --brokers 2 --dir ./cluster",
    "status": "rockoon status --nameservers 10.0.0.1:9876,10.0.0.2:9876",
    "lag": "rockoon lag --watch 5 --fail-if-loss-within 2h",
    "produce": "rockoon produce orders --file orders.ndjson --key-field id --property source=shop",
    "consume": "rockoon consume orders --group billing --from first --follow",
    "topic": "rockoon topic list",
    "topic create": "rockoon topic create orders --queues 4",
    "topic list": "rockoon topic list --all",
    "topic describe": "rockoon topic describe orders",
    "topic set": "rockoon topic set orders --permissions read",
    "topic expand": "rockoon topic expand orders --add broker-b=2",
    "topic delete": "rockoon topic delete orders --yes",
    "group": "rockoon group list",
    "group create": "rockoon group create billing --from first --retry-attempts-max 5",
    "group update": "rockoon group update billing --retry-attempts-max 5",
    "group pause": "rockoon group pause billing",
    "group resume": "rockoon group resume billing",
    "group list": "rockoon group list",
    "group describe": "rockoon group describe billing",
    "group delete": "rockoon group delete billing --yes",
    "group members": "rockoon group members billing",
    "group locks": "rockoon group locks billing",
    "group in-flight": "rockoon group in-flight billing",
    "broker": "rockoon broker describe broker-a",
    "broker describe": "rockoon broker describe broker-a",
    "log": "rockoon log list",
    "log list": "rockoon log list",
    "log describe": "rockoon log describe broker-a",
    "log copies": "rockoon log copies broker-a 3",
    "log elect": "rockoon log elect broker-a",
    "log adopt": "rockoon log adopt broker-a",
    "replica": "rockoon replica replace broker-a 4ad2f7c1 9be01d44",
    "replica replace": "rockoon replica replace broker-a 4ad2f7c1 9be01d44",
    "offsets": "rockoon offsets why billing",
    "offsets show": "rockoon offsets show billing orders",
    "offsets why": "rockoon offsets why billing",
    "offsets reset": "rockoon offsets reset billing orders --to-time 2026-01-31T12:00:00",
    "offsets undo": "rockoon offsets undo 4ad2f7c1",
    "offsets export": "rockoon offsets export --output offsets.jsonl",
    "offsets import": "rockoon offsets import offsets.jsonl --dry-run",
    "dlq": "rockoon dlq list",
    "dlq list": "rockoon dlq list billing",
    "dlq show": "rockoon dlq show billing --since 2h",
    "dlq replay": "rockoon dlq replay billing --all",
    "message": "rockoon message query orders --key order-4711",
    "message get": "rockoon message get 7F000001000078BF00000000000002F1",
    "message query": "rockoon message query orders --key order-4711 --from 2h",
    "delayed": "rockoon delayed list",
    "delayed list": "rockoon delayed list --max 20",
    "delayed cancel": "rockoon delayed cancel 7F000001000078BF00000000000002F1",
    "transactions": "rockoon transactions list",
    "transactions list": "rockoon transactions list --limit 20",
    "access": "rockoon access list",
    "access create": "rockoon access create shop --allow topic:orders=write",
    "access list": "rockoon access list",
    "access show": "rockoon access show shop",
    "access grant": "rockoon access grant shop topic:orders=read",
    "access revoke": "rockoon access revoke shop topic:orders=read",
    "access disable": "rockoon access disable shop",
    "access enable": "rockoon access enable shop",
    "access rotate": "rockoon access rotate shop",
    "access delete": "rockoon access delete shop --yes",
    "spark": "rockoon spark export --help",
}
COMMON_OPTIONS = "Options of `rockoon --help` may come before or after the command."


def add_examples(command: Any, path: str = "") -> None:
    """Set the epilog of `--help` for a command and its subcommands."""
    if (example := EXAMPLES.get(path)) is not None:
        command.epilog = f"Example: {example}" + (f"\n\n{COMMON_OPTIONS}" if path else "")
    for name, below in getattr(command, "commands", {}).items():
        add_examples(below, f"{path} {name}".strip())
