"""Draws docs/figures/methods.png from experiments/compare_methods/measured.csv.

python scripts/readme_figure.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
SHOWN = {
    ("hf_generate", None): "Hugging Face generate",
    ("llama_cpp", None): "llama.cpp (F32)",
    ("vanilla", None): "plain decoding",
    ("lookahead", 28): "Lookahead, 7/5/7",
    ("speculative", 5): "draft model, 5 tokens",
    ("prompt_lookup", 10): "prompt lookup",
    ("suffix", 16): "suffix matching",
    ("eagle_static", 25): "EAGLE-1 tree, 25 nodes",
    ("eagle_chain", 4): "EAGLE-1 chain, 4 tokens",
    ("eagle_dynamic", 4): "EAGLE-2 tree, 4 nodes",
    ("eagle_dynamic", 8): "EAGLE-2 tree, 8 nodes",
    ("hybrid", 24): "hybrid: 8-node tree, copies",
}


def main() -> None:
    """Speedup and pooled tau, one bar a method."""
    rows = pd.read_csv(ROOT / "experiments/compare_methods/measured.csv")
    rows = rows[rows["run"] == "compare_batch1"]
    keys = zip(rows["method"], rows["num_nodes"], strict=True)
    rows["label"] = [
        SHOWN.get((method, None if pd.isna(nodes) else int(nodes))) for method, nodes in keys
    ]
    rows = rows.dropna(subset=["label"]).set_index("label").loc[list(SHOWN.values())]
    figure, (speed, tau) = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    colors = ["#9aa5b1" if name in list(SHOWN.values())[:3] else "#2f6db3" for name in rows.index]
    ends = [rows["speedup"] - rows["speedup_low"], rows["speedup_high"] - rows["speedup"]]
    speed.barh(rows.index, rows["speedup"], xerr=ends, color=colors, ecolor="#333333", capsize=2)
    speed.axvline(1, color="#333333", linewidth=0.8)
    speed.set_xlabel("speedup over plain decoding, 95 % interval")
    tau.barh(rows.index, rows["tau_micro"], color=colors)
    tau.axvline(1, color="#333333", linewidth=0.8)
    tau.set_xlabel("τ, tokens per target pass, over all passes")
    speed.invert_yaxis()
    for axis in (speed, tau):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    path = ROOT / "docs/figures/methods.png"
    figure.savefig(path, dpi=110, metadata={"Software": None})
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
