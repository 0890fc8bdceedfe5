"""Numerics "exact": a model whose verifications equal plain decoding, bit for bit, as an audit found."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from specframe.backends.llama import audit
from specframe.backends.llama.audit import NARROWEST, Audit
from specframe.backends.llama.model import Model
from specframe.backends.llama.settings_key import settings_key
from specframe.cache import cache_directory
from specframe.core.errors import ConfigError
from specframe.files import write_whole

log = logging.getLogger("specframe.llama.audit")


def audited(model: Model, **options: Any) -> Audit:
    """What an earlier audit of the same model, library, machine and settings found; measured if there is none."""
    path = cache_directory("audits") / f"{settings_key(model, options)}.json"
    try:
        return Audit.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        log.info("auditing %s; this is done once for these settings", model.path.name)
    found = audit.audit(model, **options)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [json.dumps(found.to_dict(), indent=2).encode()])
    except OSError as error:
        log.warning("the audit of %s cannot be kept in %s: %s", model.path.name, path.parent, error)
    return found


def open_exact(open_model: Callable[..., Model], options: dict[str, Any], *, drafts: bool = True) -> tuple[Model, int]:
    """A model and the width up to which its verifications equal plain decoding, bit for bit.

    The kernels of repacked weights may treat four rows otherwise than one. So where the weights as they are usually
    taken do not allow for every width, the other form is tried too, and the one that allows for more is taken.

    Args:
        open_model: opens it, with further keywords.
        options: of the context, ``exact`` among them.
        drafts: whether there has to be room for drafts; else a width of 1 will do.

    Raises:
        ConfigError: there are no such settings; says why.
    """

    def judged(repack: bool | None) -> tuple[Model, Audit]:
        model = open_model(use_extra_bufts=repack)
        try:
            return model, audited(model, **options)
        except BaseException:
            model.close()
            raise

    least = NARROWEST if drafts else 1
    model, usual = judged(None)
    if usual.exact_width == max(row.width for row in usual.rows):
        return model, usual.exact_width
    model.close()  # one at a time: two may not fit into memory
    model, other = judged(not usual.use_extra_bufts)
    if other.exact_width > usual.exact_width and other.exact_width >= least:
        return model, other.exact_width
    model.close()
    if usual.exact_width < least:
        raise ConfigError(
            f"numerics='exact' cannot be had with these settings: {usual.recommendation}; see: specframe audit --exact"
        )
    return open_model(use_extra_bufts=None), usual.exact_width
