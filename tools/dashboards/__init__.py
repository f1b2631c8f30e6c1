"""Pictures of the dashboards in deploy/grafana, drawn from a sample cluster."""
