"""Makes `heldout.json`: what transformers + PEFT answer to the held-out prompts, alone, in fp32.

Every prompt of `prompts.json` goes to each of the quickstart's adapters and to the base, one at a
time, greedily. Run it once, when the model or an adapter changes (about ten minutes on two cores):

    python -m deployments.quickstart prepare
    python tests/oracle/make_heldout.py

One run of the file is `{"prompt": index, "adapter": name or null, "prompt_tokens": count,
"tokens": ids without the end token, "text": ..., "finish": "stop" or "length", "gaps": [...]}`.
`gaps[i]` is by how much the best logit of step i exceeds the second best; a run that stopped has
one more of them than tokens, for the end token itself.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import peft
import torch
import transformers

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent
ADAPTERS = ("support", "sql", "pirate")
MAX_TOKENS = 40


class Oracle:
    """The model with its adapters, all fp32."""

    def __init__(self, model: Path, adapters: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        first, *rest = ADAPTERS
        self.model = peft.PeftModel.from_pretrained(base, adapters / first, adapter_name=first)
        for name in rest:
            self.model.load_adapter(adapters / name, adapter_name=name)
        self.model.eval()
        assert {p.dtype for p in self.model.parameters()} == {torch.float32}

    def run(self, prompt: str, adapter: str | None) -> dict[str, object]:
        inputs = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        if adapter is None:
            with self.model.disable_adapter():
                return self._generate(inputs)
        self.model.set_adapter(adapter)
        return self._generate(inputs)

    @torch.inference_mode()
    def _generate(self, inputs: transformers.BatchEncoding) -> dict[str, object]:
        length = inputs["input_ids"].shape[1]
        output = self.model.generate(
            **inputs,
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = output.sequences[0, length:].tolist()
        best = torch.stack([logits[0].topk(2).values for logits in output.logits])
        stopped = tokens[-1] == self.tokenizer.eos_token_id
        kept = tokens[:-1] if stopped else tokens
        return {
            "prompt_tokens": length,
            "tokens": kept,
            "text": self.tokenizer.decode(kept, skip_special_tokens=True),
            "finish": "stop" if stopped else "length",
            "gaps": [float(f"{gap:.3g}") for gap in (best[:, 0] - best[:, 1]).tolist()],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=Path, default=PROJECT / ".loraplex/quickstart/model")
    parser.add_argument(
        "--adapters", type=Path, default=PROJECT / "deployments/quickstart/adapters"
    )
    parser.add_argument("--out", type=Path, default=HERE / "heldout.json")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    oracle = Oracle(arguments.model, arguments.adapters)
    prompts = json.loads((HERE / "prompts.json").read_text())
    runs = []
    for index, prompt in enumerate(prompts):
        for adapter in (*ADAPTERS, None):
            run = oracle.run(prompt["prompt"], adapter)
            runs.append({"prompt": index, "adapter": adapter, **run})
        print(f"{index + 1}/{len(prompts)}", flush=True)
    header = {
        "made_with": {m.__name__: m.__version__ for m in (torch, transformers, peft)},
        "max_tokens": MAX_TOKENS,
    }
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs)
    arguments.out.write_text(f'{json.dumps(header)[:-1]}, "runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
