"""If the owner lets go: what is freed, and who else holds it."""

from __future__ import annotations

from tests.detectors.cases import case

ALONE = """
    module app
    app .cache -> cache:dict
    cache [*] -> order:shop.Order x{n} 4KiB
"""
SHARED = ALONE + """
    module audit
    audit .log -> log:list
    log [*] -> order
"""


def cut(text, **numbers):
    examined = case(text, **numbers)
    return examined.cut(examined.accumulations[0])


def test_an_owner_that_holds_alone_frees_everything():
    found = cut(ALONE, n=[100, 200, 300, 400])
    assert found.freed_bytes == found.kept_bytes == 400 * 4096
    assert found.is_enough
    assert found.others == ()


def test_what_two_hold_is_freed_when_both_let_go_and_the_newest_vote():
    found = cut(SHARED, n=[100, 200, 300, 400])
    assert found.freed_bytes == 0
    assert not found.is_enough
    assert [(each.name, each.votes, each.of) for each in found.others] == [("audit.log[*]", 100, 100)]
    assert found.with_others_bytes == 400 * 4096


def test_a_holder_of_few_entries_is_no_holder_of_the_pile():
    found = cut(SHARED + """
    cache [*] -> hot:shop.Order x10 4KiB
    log [*] -> hot
    app .current -> current:list
    current [*] -> hot
    """, n=[100, 200, 300, 400])
    assert [each.name for each in found.others] == ["audit.log[*]"]


def test_what_hangs_on_the_entries_of_a_pile_names_them_as_its_other_holder():
    found = cut(ALONE + """
    order .twin -> twin:bytes x{n} 1MiB
    module pool
    pool .kept -> kept:list
    kept [*] -> twin
    """, n=[100, 200, 300, 400])
    assert [each.name for each in found.others] == ["app.cache[*].twin"]


def test_what_two_attributes_of_one_object_hold_hangs_on_that_object():
    found = cut("""
    module app
    app .shop -> shop:app.Shop
    shop .by_id -> by_id:dict
    shop .by_age -> by_age:list
    by_id [*] -> order:shop.Order x{n} 4KiB
    by_age [*] -> order
    """, n=[100, 200, 300, 400])
    assert found.point == "app.shop"


def test_what_two_modules_hold_hangs_on_no_object():
    assert cut(SHARED, n=[100, 200, 300, 400]).point == ""


def test_what_several_hold_is_shared_between_them():
    assert cut(SHARED, n=[100, 200, 300, 400]).share_of(1000) == 500
    assert cut(ALONE, n=[100, 200, 300, 400]).share_of(1000) == 1000


def test_entries_that_are_freed_but_share_what_is_large_free_little():
    found = cut(ALONE + "\n    order .model -> model:shop.Model 64MiB\n    module shop\n    shop .model -> model",
                n=[100, 200, 300, 400])
    assert found.freed_bytes == 400 * 4096
