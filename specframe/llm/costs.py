"""What batches cost on this machine, kept from one process for the next one that loads the same model."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import attrs

from specframe.cache import cache_directory
from specframe.core.costs import CostModel
from specframe.core.errors import ConfigError
from specframe.files import write_whole

log = logging.getLogger(__name__)

_FORMAT = 1


@attrs.frozen
class KeptCosts:
    """The costs of one model with its settings, and the file they are kept in.

    A file that cannot be read or written costs nothing but some steps of measuring.
    """

    path: Path
    model: CostModel

    @classmethod
    def of(cls, key: str) -> KeptCosts:
        """What is known for ``key``: the model, library, machine and settings."""
        path = cache_directory("costs") / f"{key}.json"
        model = CostModel()
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["format"] == _FORMAT:
                model = CostModel.from_dict(document["costs"])
        except FileNotFoundError:
            pass
        except (OSError, ConfigError, ValueError, TypeError, KeyError, RecursionError) as error:
            log.warning("the costs kept in %s cannot be read and are measured anew: %s", path, error)
        return cls(path, model)

    def save(self) -> None:
        """Keep what is known now; a file that is there is replaced as a whole."""
        costs = self.model.to_dict()
        if not costs["batches"]:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, [json.dumps({"format": _FORMAT, "costs": costs}).encode()])
        except OSError as error:
            log.warning("what batches cost cannot be kept in %s: %s", self.path.parent, error)
