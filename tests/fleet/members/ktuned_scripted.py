"""Takes the place of the process that joins a cluster: it lists two nodes and answers as its address says."""

import asyncio
import socket
import sys

import msgspec

from ktuned.fleet import cluster_messages
from ktuned.fleet.cluster_messages import Answer, Exchange, Gone, Kill, Node, Nodes, Result, Start, ToolchainChanged
from ktuned.ipc import frames


async def answer_commands(descriptor: int, address: str) -> None:
    """Answer each command until the socket closes."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))

    def send(report: cluster_messages.Report) -> None:
        writer.write(frames.encode(report))

    if address == "refused":
        sys.exit("the cluster did not let the daemon join: wrong token")
    send(Nodes("Farm 1", (Node("1", "n1", 4, 2), Node("2", "n2", 0, 1))))
    while True:
        try:
            command = await cluster_messages.read_message(reader, cluster_messages.COMMANDS)
        except asyncio.IncompleteReadError:
            return
        match command:
            case Start():
                role_and_lane = f"{command.role} {command.lane}"
                if address == "sick":
                    send(Answer(command.worker, lost="no plugin there"))
                elif address == "taken" and command.lane.startswith("cuda"):
                    send(Answer(command.worker, lost="no GPU came free"))
                else:
                    print(role_and_lane, file=sys.stderr, flush=True)
                    send(Answer(command.worker, frames.encode(Result(pid=100 + command.worker))))
            case Exchange():
                (request,) = map(msgspec.msgpack.decode, frames.Decoder().feed(command.request))
                if address == "dies":
                    sys.exit("the head was lost")
                if address == "shrinks":
                    send(Nodes("Farm 1", (Node("2", "n2", 0, 1),)))
                    send(Gone(command.worker, "its node died"))
                    continue
                stdout = str(request.get("device", {}).get("name", ""))
                send(Answer(command.worker, frames.encode(Result(value=msgspec.Raw(b"\x80"), stdout=stdout))))
                send(ToolchainChanged("1", "a compiler changed"))
            case Kill():
                send(Gone(command.worker, command.why))


asyncio.run(answer_commands(int(sys.argv[1]), sys.argv[2]))
