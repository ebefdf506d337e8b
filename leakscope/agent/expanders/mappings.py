"""mmap: the pages of a mapping are memory of the process that no Python object counts."""

LIBRARY = "mmap"


def reader(walk, cls):
    """A mapping holds a node "mapping" of its length."""
    from .. import classes, instances

    mapping = dict.get(classes.space_named("mmap"), "mmap")
    if not any(base is mapping for base in classes.mro_of(cls)):
        return None
    plain = instances.InstanceReader(walk, cls)

    def read(thing):
        targets, labels = plain(thing)
        try:
            length = mapping.__len__(thing)
        except ValueError:  # closed
            return targets, labels
        memory = walk.memory(("mapping", id(thing)), "mapping", length)
        return list(targets) + [memory], list(labels) + [walk.storage_label]

    return read
