"""Flat settings of a push consumer for tests that change one of many settings."""

from dataclasses import fields
from typing import Any

from rockoon.consumer.consume_result import Order
from rockoon.consumer.push_consumer import Timing

TIMING = {field.name for field in fields(Timing)}
ORDER = {field.name for field in fields(Order)}


def grouped(settings: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of `Cluster.push_consumer`; fields of Timing and Order are
    grouped."""
    rest = {name: value for name, value in settings.items() if name not in TIMING | ORDER}
    timing = {name: settings[name] for name in TIMING & settings.keys()}
    order = {name: settings[name] for name in ORDER & settings.keys()}
    if timing:
        rest["timing"] = Timing(**timing)
    if rest.get("orderly") and order:
        rest["orderly"] = Order(**order)
    return rest
