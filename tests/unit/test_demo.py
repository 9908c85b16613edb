"""The demo's pure parts: its text, its arithmetic, and that no broken promise goes unnoticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from s3kv.cli.demo_bucket import count_requests
from s3kv.cli.demo_report import Measured, problems
from s3kv.cli.demo_text import chat_prompt, day_book

GOOD = Measured(
    prompt_tokens=7_000,
    cold_ttft_s=10.0,
    warm_ttft_s=0.5,
    local_ttft_s=0.4,
    damaged_ttft_s=10.1,
    warm_external_tokens=6_912,
    damaged_external_tokens=0,
    warm_equals_local_hit=True,
    damaged_equals_cold=True,
    bytes_archived=160_000_000,
    shards=28,
    requests={"GET": 100, "PUT": 30},
    answer="The goods",
)


def test_a_run_that_keeps_every_promise_has_no_problems() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, prompt_tokens=5_999, warm_external_tokens=5_990),
        replace(GOOD, warm_external_tokens=0),
        replace(GOOD, warm_external_tokens=6_649),
        replace(GOOD, warm_equals_local_hit=False),
        replace(GOOD, damaged_equals_cold=False),
        replace(GOOD, warm_ttft_s=1.01),
    ],
)
def test_each_broken_promise_is_one_problem(bad: Measured) -> None:
    assert len(problems(bad)) == 1


def test_the_document_has_the_fields_that_others_rely_on() -> None:
    assert GOOD.document().keys() >= {
        "prompt_tokens",
        "cold_ttft_s",
        "warm_ttft_s",
        "warm_external_tokens",
        "warm_equals_local_hit",
        "damaged_equals_cold",
        "bytes_archived",
        "requests",
    }


def test_the_prompt_is_the_same_in_every_process_and_long_enough() -> None:
    assert chat_prompt(62) == chat_prompt(62)
    assert day_book(62) != day_book(62, seed=2)
    # Any tokenizer that a model of this size uses makes at most one token of 4 characters here.
    assert len(chat_prompt(62)) > 4 * 6_000


def test_server_counts_are_summed_over_codes_and_for_our_bucket_only() -> None:
    page = "\n".join(
        [
            "# TYPE SeaweedFS_s3_request_total counter",
            'SeaweedFS_s3_request_total{bucket="ours",code="200",type="GET"} 2',
            'SeaweedFS_s3_request_total{bucket="ours",code="404",type="GET"} 3',
            'SeaweedFS_s3_request_total{bucket="ours",code="200",type="PUT"} 1e+01',
            'SeaweedFS_s3_request_total{bucket="theirs",code="200",type="GET"} 7',
        ]
    )
    assert count_requests(page, "ours") == {"GET": 5, "PUT": 10}
