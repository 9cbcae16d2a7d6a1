"""Run a real OPC UA server (asyncua) in a separate process: ``python opcua_server.py PORT [CERTIFICATE KEY | open |
history]``.

Accepts only the user 'probe' with the password 'secret', and with ``open`` also clients without a user. Its namespace
is urn:plant. With a certificate it takes encrypted connections only. With ``history`` it keeps the history of Temp.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from typing import Any

from asyncua import Server, ua
from asyncua.crypto.permission_rules import User, UserRole

VALUES: dict[str, tuple[Any, ua.VariantType]] = {
    "Temp": (20.0, ua.VariantType.Double),
    "Count": (0, ua.VariantType.Int32),
    "Name": ("saw", ua.VariantType.String),
    "Flag": (False, ua.VariantType.Boolean),
    "When": (datetime.datetime(2026, 1, 1), ua.VariantType.DateTime),
    "Locked": (1.0, ua.VariantType.Double),
}


class OneUser:
    def get_user(self, iserver: Any, username: Any = None, password: Any = None, **more: Any) -> User | None:
        known = (username, password) == ("probe", "secret") or (username is None and "open" in sys.argv)
        return User(role=UserRole.User, name="probe") if known else None


async def serve(port: int, *files: str) -> None:
    server = Server(user_manager=OneUser())
    await server.init()
    server.set_endpoint(f"opc.tcp://127.0.0.1:{port}/")
    if len(files) == 2:
        server.set_security_policy([ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt])
        await server.load_certificate(files[0])
        await server.load_private_key(files[1])
    index = await server.register_namespace("urn:plant")
    for name, (value, type_) in VALUES.items():
        node = await server.nodes.objects.add_variable(ua.NodeId(name, index), name, value, type_)
        if name != "Locked":
            await node.set_writable()
    async with server:
        if "history" in files:
            await server.historize_node_data_change(server.get_node(ua.NodeId("Temp", index)), count=1000)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), *sys.argv[2:]))
