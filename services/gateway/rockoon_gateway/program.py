"""The gateway as a program."""

from rockoon_gateway.server import serve
from rockoon_gateway.settings import GatewaySettings
from rockoon_runtime.process import Program

PROGRAM = Program(
    "gateway", "Rockoon's gateway: RocketMQ's 5.x clients on this cluster", GatewaySettings, serve
)
