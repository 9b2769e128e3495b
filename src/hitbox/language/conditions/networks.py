"""Internet addresses on one line of 128 bits: IPv4 addresses lie where IPv6 maps them, from ::ffff:0:0 on.

10.0.0.1            ::ffff:10.0.0.1, and the same number
10.0.0.0/8          ::ffff:10.0.0.0/104
::/0                every address, IPv4 included
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Network, IPv6Address, IPv6Network, NetmaskValueError

MAPPED = 0xFFFF << 32
LONGEST = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")
OCTETS = {str(octet): octet for octet in range(256)}


def address(text: str) -> int | None:
    """The number of an address; None where the text is none. A zone (fe80::1%eth0) is no part of an address."""
    if len(text) > LONGEST:
        return None
    try:
        if ":" not in text:
            return _four(text)
        return None if "%" in text else int(IPv6Address(text))
    except AddressValueError:
        return None


def _four(text: str) -> int | None:
    """That of an IPv4 address: four octets without leading zeros."""
    parts = text.split(".")
    if len(parts) != 4:
        return None
    number = 0xFFFF
    for part in parts:
        octet = OCTETS.get(part)
        if octet is None:
            return None
        number = number << 8 | octet
    return number


def network(text: str) -> tuple[int, int]:
    """The first and the last number of a network, given as address/bits or as one address; a ValueError says why not.

    >>> network("10.0.0.0/8") == (address("10.0.0.0"), address("::ffff:10.255.255.255"))
    True
    """
    try:
        if ":" not in text:
            four = IPv4Network(text)
            return MAPPED | int(four.network_address), MAPPED | int(four.broadcast_address)
        if "%" in text:
            raise ValueError("a network has no zone")
        six = IPv6Network(text)
        return int(six.network_address), int(six.broadcast_address)
    except NetmaskValueError:
        raise ValueError("write how many bits are the network's after the '/', as in '10.0.0.0/8'") from None
    except AddressValueError:
        raise ValueError("write an address, '/' and a number of bits, as in '10.0.0.0/8' or '2001:db8::/32'") from None
    except ValueError as problem:
        if "host bits" not in str(problem):
            raise
        whole = (IPv4Network if ":" not in text else IPv6Network)(text, strict=False)
        raise ValueError(f"the address has bits beyond the network's: write '{whole}'") from None
