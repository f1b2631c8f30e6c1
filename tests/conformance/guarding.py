"""Scenarios of a server that requires signatures."""

from typing import Any

from conformance.client_process import ClientFailed
from conformance.scene import Differs, Scene, bodies, expect


def signed(scene: Scene) -> None:
    """Calls signed with a key are answered; with another secret they are refused."""
    assert scene.target.guard is not None
    key, secret = scene.target.guard.access_key, scene.target.guard.secret_key
    topic = _there_and_back(scene, access_key=key, secret_key=secret)
    try:
        stranger = scene.client()
        sender = scene.sender(topic, stranger, access_key=key, secret_key=f"not {secret}")
        sender.send("of a stranger")
    except ClientFailed:
        return
    raise Differs("a wrong signature was taken")


def signed_over_tls(scene: Scene) -> None:
    """The same through TLS."""
    guard = scene.target.guard
    assert guard is not None
    keys = {"access_key": guard.access_key, "secret_key": guard.secret_key}
    _there_and_back(scene, tls=True, **keys)


def _there_and_back(scene: Scene, **how: Any) -> str:
    topic, group = scene.topic(), scene.group()
    sender, receiver = scene.sender(topic, **how), scene.receiver(topic, group, **how)
    sender.send("let in")
    expect(bodies(receiver.take(1)), ["let in"], "received")
    return topic
