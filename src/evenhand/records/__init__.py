"""What is kept on disk: the folder that one process holds, writing that nothing interrupts, and checksums."""

from evenhand.records._folder import (
    LOCK,
    SHA256,
    Sum,
    fits_its_list,
    held,
    is_sealed,
    resealed,
    sum_of,
    sum_of_file,
    uninterrupted,
)

__all__ = [
    "LOCK",
    "SHA256",
    "Sum",
    "fits_its_list",
    "held",
    "is_sealed",
    "resealed",
    "sum_of",
    "sum_of_file",
    "uninterrupted",
]
