"""Grafana's dashboards: what is on them (`contents`), their JSON (`panels`), and pictures."""
