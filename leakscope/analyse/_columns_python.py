"""Passes over the columns of one snapshot in Python: what they mean, and what is used where _columns.c was not built.

Results are identical to those of _columns.c, and so are the calls. N nodes, E edges, C path classes, S strings, T types.
Results are written into arrays of the caller.

Raises everywhere:
    ValueError: an array is of another length than it has to be, or holds something that is no row of another.
"""

from __future__ import annotations

import numpy as np

from leakscope.heap.graph import Array
from leakscope.heap.layout import EDGE_KIND_SHIFT, IMMORTAL

ANY, BY_NAME, BY_SHOWN_NAME, BY_PLACE = range(4)  # what tells an edge from its siblings, by its kind
_STAR = 0x5851F42D4C957F2D
_M1, _M2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
_64 = (1 << 64) - 1


def outside(edge_target: Array, refcount: Array, address: Array, mask: Array) -> None:
    """Say in `mask` (N,) u1 which nodes more refer to than the edges show.

    `refcount` (N,) u4 and `address` (N,) u8 as in agent/format.py: immortal objects count as held, and what is no object
    (address 0) where no edge leads to it, or where it has a count and more refer to it.
    """
    _check(len(refcount) == len(address) == len(mask) and _below(edge_target, len(mask)))
    incoming = np.bincount(edge_target, minlength=len(mask))
    mask[:] = np.where(refcount == IMMORTAL, address != 0, refcount > incoming) | ((address == 0) & (incoming == 0))


def border(edge_start: Array, edge_target: Array, root: Array, mask: Array) -> None:
    """Say in `mask` (N,) u1 which nodes with a `root` (N,) i4 of 0 or more hold one with less."""
    _check(len(edge_start) == len(root) + 1 == len(mask) + 1 and _below(edge_target, len(root)))
    _check(int(edge_start[-1]) == len(edge_target))
    holder = np.repeat(np.arange(len(root)), (edge_start[1:] - edge_start[:-1]).astype(np.int64))
    mask[:] = 0
    mask[holder[root[edge_target] < 0]] = 1
    mask[root < 0] = 0


def order_by(values: Array, order: Array, start: Array) -> None:
    """Sort the rows of `values` (N,) i4 that are not -1 into `order` (M,) u4, equal ones as they come.

    Rows of the value i are order[start[i]:start[i + 1]]; `start` is (groups + 1,) u8.
    """
    _check(_from_minus_one(values, len(start) - 1) and (values >= 0).sum() == len(order))
    start[:] = np.concatenate(([0], np.cumsum(np.bincount(values[values >= 0], minlength=len(start) - 1))))
    order[:] = np.argsort(values, kind="stable")[len(values) - len(order):]


def path_keys(order: Array, parent: Array, parent_edge: Array, edge_label: Array, depth: Array, type_id: Array,
              string_token: Array, string_shown: Array, is_tuple: Array, naming: Array, tuple_places: int, folded_depth: int,
              token: Array, key: Array) -> None:
    """Write a hash of the path to each node, from a tree, into `key` (N,) u8: equal for siblings and in every snapshot.

    A node like its parent, or too far down, has the key of its parent: a linked list is one class.

    Args:
        order: (M,) u4, the nodes to look at, parents first.
        parent, parent_edge: (N,) i4 and i8, -1 where a path begins.
        edge_label, depth, type_id: (E,) u4, (N,) i4, (N,) u4.
        string_token, string_shown: (S,) u8 and u1, a hash of each string and whether it is a shown key.
        is_tuple: (T,) u1; indices below `tuple_places` of those tell their entries apart.
        naming: (32,) u1, for each kind of edges what tells one from its siblings.
        folded_depth: from here on down the path is that of the parent.
        token: (N,) u8, of the last step alone; those where a path begins come in.
    """
    _check(len({len(each) for each in (parent, parent_edge, depth, type_id, token, key)}) == 1 and len(naming) == 32)
    _check(_below(order, len(parent)) and _from_minus_one(parent, len(parent)) and _below(type_id, len(is_tuple)))
    _check(0 < len(string_token) == len(string_shown) and _below(parent_edge[order][parent[order] >= 0], len(edge_label)))
    above, edges = parent.tolist(), parent_edge.tolist()
    tokens, keys, types, depths = token.tolist(), key.tolist(), type_id.tolist(), depth.tolist()
    for node in order.tolist():
        holder = above[node]
        if holder < 0:
            keys[node] = tokens[node]
            continue
        kind, value = divmod(int(edge_label[edges[node]]), 1 << EDGE_KIND_SHIFT)
        string, how = value if value < len(string_token) else 0, naming[kind]
        last = _STAR
        if how == BY_NAME or how == BY_SHOWN_NAME and string_shown[string]:
            last = int(string_token[string])
        elif how == BY_PLACE and value < tuple_places and is_tuple[types[holder]]:
            last = value
        tokens[node] = _mix(last, kind + 1)
        is_folded = tokens[node] == tokens[holder] and types[node] == types[holder] or depths[node] >= folded_depth
        keys[node] = keys[holder] if is_folded else _mix(keys[holder], tokens[node])
    token[:], key[:] = np.array(tokens, np.uint64), np.array(keys, np.uint64)


def classify(order: Array, key: Array, class_of: Array) -> int:
    """Number the different keys of the nodes in `order` (M,) u4 as they come, into `class_of` (N,) i4, and return how many.

    Nodes that are not in `order` get -1.
    """
    _check(len(key) == len(class_of) and _below(order, len(key)))
    class_of[:] = -1
    numbers: dict[int, int] = {}
    class_of[order] = [numbers.setdefault(each, len(numbers)) for each in key[order].tolist()]
    return len(numbers)


def class_sums(order: Array, parent: Array, class_of: Array, shallow_bytes: Array, length: Array, count: Array,
               bytes_out: Array, subtree: Array, lengths: Array) -> None:
    """Add up the nodes in `order` (M,) u4, parents first, by their class: results (C,) i8.

    `subtree` is what hangs below the members in the tree, members included; of members that hang on one
    another the first alone.
    """
    _check(len(parent) == len(class_of) == len(shallow_bytes) == len(length) and _below(order, len(parent)))
    _check(len({len(each) for each in (count, bytes_out, subtree, lengths)}) == 1 and _from_minus_one(class_of, len(count)))
    _check(_from_minus_one(parent, len(parent)) and not (class_of[order] < 0).any())
    below, above, classes = shallow_bytes.tolist(), parent.tolist(), class_of.tolist()
    for node in order[::-1].tolist():
        if above[node] >= 0:
            below[above[node]] += below[node]
        if above[node] < 0 or classes[above[node]] != classes[node]:
            subtree[classes[node]] += below[node]
    rows = class_of[order]
    np.add.at(count, rows, 1)
    np.add.at(bytes_out, rows, shallow_bytes[order].astype(np.int64))
    np.add.at(lengths, rows, length[order].astype(np.int64))


def sums_by(rows: Array, values: Array, count: Array, total: Array) -> None:
    """Add to `count` and `total` (groups,) i8 how many `rows` (N,) u4 are of each group, and their `values` (N,) u8."""
    _check(len(rows) == len(values) and len(count) == len(total) and _below(rows, len(count)))
    np.add.at(count, rows, 1)
    np.add.at(total, rows, values.astype(np.int64))


def _mix(left: int, right: int) -> int:
    mixed = (left * _M1 & _64) ^ right
    return (mixed ^ mixed >> 29) * _M2 & _64


def _below(rows: Array, limit: int) -> bool:
    return not len(rows) or 0 <= int(rows.min()) and int(rows.max()) < limit


def _from_minus_one(rows: Array, limit: int) -> bool:
    return not len(rows) or -1 <= int(rows.min()) and int(rows.max()) < limit


def _check(fits: bool) -> None:
    if not fits:
        raise ValueError("an array is of another length than the graph, or holds no node of it")
