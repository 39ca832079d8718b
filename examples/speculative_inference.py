"""Generate with speculation on, see what it gained, and compare with the target alone.

By default the built-in model drafts for itself by n-gram lookup. With a smaller model as draft:

    python examples/speculative_inference.py --model gpt2-xl --draft-model gpt2 --gamma 5
"""

from __future__ import annotations

import argparse
import time

from foredraft import ForedraftError, Generation, Inferencer, SamplingParams, SpeculativeInferencer

PROMPT = "Count to ten, then count to ten once more."


def main() -> None:
    options = parse_options()
    sampling = SamplingParams(
        temperature=options.temperature, seed=options.seed, max_new_tokens=options.max_new_tokens
    )
    speculative = SpeculativeInferencer(
        options.model,
        options.draft_model,
        num_draft_tokens=options.gamma,
        rule="seed-exact",  # The same seed gives the same text as the target alone.
    )
    plain = Inferencer(speculative.target)  # The model is loaded once.

    text, seconds = timed(speculative, options.prompt, sampling)
    text_alone, seconds_alone = timed(plain, options.prompt, sampling)

    print(text.text)
    print()
    stats = text.stats
    print(f"drafter              {speculative.drafter_name}")
    print(f"drafted, accepted    {stats.drafted}, {stats.accepted} ({stats.acceptance_rate:.0%})")
    print(f"mean accepted length {stats.mean_accepted_length:.2f} tokens a target forward")
    print(f"speculative          {len(text.token_ids)} tokens in {seconds:.2f} s")
    print(f"target alone         {len(text_alone.token_ids)} tokens in {seconds_alone:.2f} s")
    print(f"same text            {'yes' if text.token_ids == text_alone.token_ids else 'no'}")


def timed(inferencer: Inferencer, prompt: str, sampling: SamplingParams) -> tuple[Generation, float]:
    """One generation and the seconds it took; instruct models get the prompt as a chat."""
    instruct = inferencer.tokenizer is not None and inferencer.tokenizer.has_chat_template
    request = [{"role": "user", "content": prompt}] if instruct else prompt
    started = time.perf_counter()
    (generation,) = inferencer.inference([request], sampling)
    return generation, time.perf_counter() - started


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="built-in name, hub id, folder or .gguf file")
    parser.add_argument(
        "--draft-model", help="a smaller model with the same tokenizer; default: n-gram lookup"
    )
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--gamma", type=int, default=4, help="tokens drafted a round")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except ForedraftError as error:
        raise SystemExit(f"{error}") from None
