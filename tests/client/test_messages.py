from tests.client.message_types import MADE, generate_messages


def test_the_clients_types_are_derived_from_the_daemons() -> None:
    """``messages.py`` is, to the byte, what the script makes of the protocol's structs."""
    assert MADE.read_text() == generate_messages()
