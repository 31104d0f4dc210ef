"""
The IP addresses of the public Internet.

Source: https://www.iana.org/assignments/iana-ipv4-special-registry, https://www.iana.org/assignments/iana-ipv6-special-registry
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

IpAddress: TypeAlias = IPv4Address | IPv6Address
#: Networks that are not reachable from everywhere, or lead to other addresses.
_SPECIAL_4 = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24"),
            *("192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)  # fmt: skip
_UNICAST = IPv6Network("2000::/3")  # site-local, unique local, NAT64, and all others lie outside
#: Of that: protocols (Teredo and ORCHID among them), documentation, 6to4, AS112.
_SPECIAL_6 = tuple(
    map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"))
)


def is_public(address: IpAddress) -> bool:
    """
    Return True for an address of the public Internet that holds none of another kind within.

    Python's own tables are those of its release, and lack what was registered since: of IPv6 only global unicast is public, without what is
    set apart in it.
    """
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if not address.is_global:
        return False
    if isinstance(address, IPv6Address):
        return address in _UNICAST and not any(address in one for one in _SPECIAL_6)
    return not any(address in one for one in _SPECIAL_4)
