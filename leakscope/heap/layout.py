"""The codes of a snapshot (agent/format.py) for the analyses: only session and heap look into the agent's island."""

from leakscope.agent.format import (
    ATTRIBUTE,
    CELL,
    CONTENTS,
    EDGE_KIND_SHIFT,
    EDGE_KINDS,
    EDGE_VALUE_MASK,
    ELEMENT,
    IMMORTAL,
    INDEX,
    INTERNAL,
    KEY,
    KEY_OBJECT,
    LOCAL,
    NODE_KINDS,
    QUIET_CPU,
    ROOT_KINDS,
    STACK,
    STATES,
    STORAGE,
    TYPE,
    UNKNOWN,
    edge_label,
    is_quiet,
)

__all__ = ["ATTRIBUTE", "CELL", "CONTENTS", "EDGE_KINDS", "EDGE_KIND_SHIFT", "EDGE_VALUE_MASK", "ELEMENT", "IMMORTAL", "INDEX",
           "INTERNAL", "KEY", "KEY_OBJECT", "LOCAL", "NODE_KINDS", "QUIET_CPU", "ROOT_KINDS", "STACK", "STATES", "STORAGE",
           "TYPE", "UNKNOWN", "edge_label", "is_quiet"]
