"""The host's lead: how long before the GPU it begins a batch, and which samples count."""

from hypothesis import given
from hypothesis import strategies as st

from ktuned.measuring.cuda_timer import FIRST_LEAD_S, LEAD_DECAY, MOST_LEAD_S, HostLead

ON_TIME, LATE = False, True


def test_a_host_that_is_on_time_has_all_samples_counted_and_no_lead() -> None:
    lead = HostLead()
    assert lead.judge_samples([ON_TIME] * 20) == list(range(20))
    assert lead.lead_s == 0.0


def test_a_single_late_launch_does_not_count_and_changes_nothing() -> None:
    """One interruption says nothing about the host's speed."""
    lead = HostLead()
    assert lead.judge_samples([ON_TIME] * 3 + [LATE]) == [0, 1, 2]
    assert lead.lead_s == 0.0


def test_late_launches_double_the_lead_up_to_its_maximum_and_then_count() -> None:
    """No sample counts until the lead is at its maximum; then every sample counts, so that the timing ends."""
    lead = HostLead()
    leads = []
    while (counted := lead.judge_samples([LATE] * 4)) == []:
        leads.append(lead.lead_s)
    assert counted == [0, 1, 2, 3]
    assert leads == [min(MOST_LEAD_S, FIRST_LEAD_S * 2**number) for number in range(len(leads))]
    assert leads[-1] == MOST_LEAD_S


def test_the_lead_shrinks_while_the_host_is_on_time() -> None:
    """The lead shrinks to zero."""
    lead = HostLead()
    for _ in range(3):
        lead.judge_samples([LATE])
    longest = lead.lead_s
    lead.judge_samples([ON_TIME])
    assert lead.lead_s == longest * LEAD_DECAY
    for _ in range(100):
        lead.judge_samples([ON_TIME])
    assert lead.lead_s == 0.0


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=30), max_size=40))
def test_a_late_sample_counts_only_at_the_maximal_lead(batches: list[list[bool]]) -> None:
    """Samples on time always count, and the lead keeps its bounds, whatever the host does."""
    lead = HostLead()
    for batch in batches:
        lead_before = lead.lead_s
        counted = lead.judge_samples(batch)
        assert lead_before >= MOST_LEAD_S or not any(batch[index] for index in counted)
        assert {index for index, late in enumerate(batch) if not late} <= {*counted}
        assert 0.0 <= lead.lead_s <= MOST_LEAD_S
