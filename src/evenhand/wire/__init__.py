"""What crosses the wire: messages as bytes, identities of clients, and the messages of a secure sum."""

from evenhand.wire.identities import Identity
from evenhand.wire.messages import Packet, PacketError, decode, encode, packed, unpacked
from evenhand.wire.secure_sums import Protection

__all__ = ["Identity", "Packet", "PacketError", "Protection", "decode", "encode", "packed", "unpacked"]
