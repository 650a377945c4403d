"""The base class of the sections of a configuration."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt, Le
from pydantic import BaseModel, ConfigDict

Share = Annotated[float, Gt(0), Le(1)]


class Section(BaseModel):
    """Base class of sections: frozen, unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
