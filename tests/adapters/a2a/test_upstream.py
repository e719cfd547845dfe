"""How the conformance suites are judged: what passes on the plain SDK must pass with stoppable, or have a reason."""

from pathlib import Path

from tests.host_suites.suites import FAILED, PASSED, SKIPPED, Result

from .upstream import ADAPTER, ON_PURPOSE, PLAIN, SERVE, Comparison, compare, page, reason_of, suspects_of


def result(**states):
    return Result(states=states, files={}, seconds=1.0, log=Path())


def comparison(runs):
    """Compare with results that are at hand: the runs of each server in turn."""
    turns = {server: iter(results) for server, results in runs.items()}
    return compare("1.0", "abc1234", lambda _protocol, server, *_rest: next(turns[server]))


def test_a_test_that_fails_twice_with_stoppable_alone_is_a_defect():
    good, bad = result(one=PASSED), result(one=FAILED)
    compared = comparison({PLAIN: [good, good], ADAPTER: [bad, bad], SERVE: [good]})
    assert compared.defects == [f"{ADAPTER}, 1.0: `one` (passed, then failed)"]


def test_a_test_that_passes_when_it_is_repeated_is_no_defect_and_is_listed():
    good, bad = result(one=PASSED), result(one=FAILED)
    compared = comparison({PLAIN: [good, good], ADAPTER: [bad, good], SERVE: [good]})
    assert (compared.defects, len(compared.flakes)) == ([], 1)


def test_a_difference_with_a_reason_is_neither_repeated_nor_a_defect():
    (server, name), reason = next(iter(ON_PURPOSE.items()))
    good, bad = result(**{name: PASSED}), result(**{name: FAILED})
    runs = {PLAIN: [good], ADAPTER: [good], SERVE: [good]} | {server: [bad]}
    compared = comparison(runs)
    assert (compared.defects, compared.flakes) == ([], [])
    assert compared.on_purpose == {f"{server}, 1.0: {reason}": {name}}
    assert f"- {server}, 1.0: {reason}: `{name}`" in page([], [compared])


def test_only_stoppable_serve_may_skip_what_passes_plain():
    plain, skipping = result(one=PASSED), result(one=SKIPPED)
    assert suspects_of(plain, skipping, ADAPTER) == {"one": "passed, then skipped"}
    assert suspects_of(plain, skipping, SERVE) == {}


def test_a_reason_counts_for_its_server_alone():
    assert reason_of(SERVE, "tests.x.TestFileArtifact.test_y[grpc]") is not None
    assert reason_of(ADAPTER, "tests.x.TestFileArtifact.test_y[grpc]") is None


def test_the_page_names_what_fails_on_the_plain_sdk_and_where_it_does_not():
    results = {PLAIN: result(one=FAILED), ADAPTER: result(one=PASSED), SERVE: result(one=FAILED)}
    text = page(["- a fact"], [Comparison(protocol="0.3", commit="abc1234", results=results)])
    assert f"- 0.3: `one`, not on {ADAPTER}" in text
    assert f"| 0.3 (`abc1234`) | {ADAPTER} | 1 | 0 | 0 | 1 s |" in text
