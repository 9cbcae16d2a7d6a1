"""Run a real MQTT broker (amqtt) in a separate process: ``python mqtt_broker.py PORT``.

Accepts only the user 'probe' with the password 'secret'. Sessions live until the process ends.
"""

from __future__ import annotations

import asyncio
import sys

from amqtt.broker import Broker
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session


class OneUser(BaseAuthPlugin):
    async def authenticate(self, *, session: Session) -> bool:
        return (session.username, session.password) == ("probe", "secret")


async def serve(port: int) -> None:
    listener = {"type": "tcp", "bind": f"127.0.0.1:{port}"}
    broker = Broker({"listeners": {"default": listener}, "plugins": {"__main__.OneUser": {}}})
    await broker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
