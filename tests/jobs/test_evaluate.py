from __future__ import annotations

import time

import pytest

from jobs import evaluate
from recbench_spark import cli


def test_o1(spark, tmp_path, capsys):
    lists = {
        "u1": {3: 0.6, 7: 0.5, 10: 0.4, 11: 0.3, 2: 0.2},
        "u2": {5: 0.6, 8: 0.5, 11: 0.4, 1: 0.3, 3: 0.2},
        "u3": {4: 1.0, 9: 0.5, 2: 0.1},
    }
    truth = {"u1": range(5, 11), "u2": (4, 6, 7, 10, 11), "u3": range(1, 6)}
    (tmp_path / "lists.csv").write_text(
        "user_id,item_id,score\n"
        + "".join(f"{u},{i},{s}\n" for u, r in lists.items() for i, s in r.items())
    )
    (tmp_path / "truth.csv").write_text(
        "user_id,item_id\n" + "".join(f"{u},{i}\n" for u, r in truth.items() for i in r)
    )
    for n in range(3):
        t = time.time()
        with pytest.raises(SystemExit) as e:
            cli.run(
                evaluate.main,
                evaluate.parser(),
                [
                    "--warehouse",
                    str(tmp_path / f"w{n // 2}"),
                    "--model",
                    "m",
                    "--lists",
                    str(tmp_path / "lists.csv"),
                    "--truth",
                    str(tmp_path / "truth.csv"),
                    "--k",
                    "1,2,3,5,10",
                    "--bootstrap",
                    "50",
                ],
            )
        with capsys.disabled():
            print(e.value.code, time.time() - t)
            print(capsys.readouterr())
