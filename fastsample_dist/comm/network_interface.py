"""Which network interface leads to the other ranks: the one from which the kernel would reach MASTER_ADDR.

A UDP socket that is connected, but never written to, has the source address of that route; the interface is the
one that carries this address.
"""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger(__name__)

VARIABLE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"


def source_address(host: str) -> str:
    """The address of this machine from which `host` is reached; sends nothing.

    Raises:
      RuntimeError: the name does not resolve, or no route leads there.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return probe.getsockname()[0]
    except OSError as error:
        raise RuntimeError(
            f"MASTER_ADDR is {host}, which this machine cannot reach ({error}); set it to a reachable address of "
            f"rank 0's machine, or set {VARIABLE} to the interface to use."
        ) from error


def interface_of(address: str) -> str | None:
    """Name of the interface that carries `address`, None when no interface does.

    Raises:
      ImportError: psutil is not installed.
    """
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == address for entry in addresses):
            return name
    return None


def choose_interface(master_addr: str | None, several_machines: bool) -> None:
    """Set GLOO_SOCKET_IFNAME for this process to the interface that routes to `master_addr`, unless it is set.

    Args:
      master_addr: where the ranks meet; None for a run of one rank.
      several_machines: the run spans more than one machine, as far as the launcher shows.
    Raises:
      RuntimeError: no route; a loopback address for several machines; psutil missing for several machines.
    """
    if os.environ.get(VARIABLE):
        return
    address = source_address(master_addr or LOOPBACK)
    if several_machines and (address.startswith("127.") or address == "::1"):
        raise RuntimeError(
            f"MASTER_ADDR is {master_addr}, which leads to {address} here, but the run spans several machines; set "
            f"MASTER_ADDR to an address that the others reach, or set {VARIABLE}."
        )
    try:
        name = interface_of(address)
    except ImportError as error:
        if several_machines:
            raise RuntimeError(
                f"psutil is needed to find the interface that routes to {master_addr}: pip install psutil, or set "
                f"{VARIABLE}."
            ) from error
        logger.info("psutil is not installed: gloo chooses the interface by this machine's host name")
        return
    if name is None:
        raise RuntimeError(f"no interface carries {address}, the way to {master_addr}; set {VARIABLE}.")
    os.environ[VARIABLE] = name
    logger.info("%s=%s: the interface that routes to %s", VARIABLE, name, master_addr or LOOPBACK)
