"""
lm-eval, asked for a task of each kind whose answers are log likelihoods, on the models of a running server. It prints what each
model answered, as JSON.

usage: lm_eval_client.py BASE_URL TOKENIZER MODEL...; the server's key is in OPENAI_API_KEY
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

QUESTIONS = [
    {
        "question": f"What is the capital of {country}? The capital of {country} is",
        "choices": cities,
        "answer": 0,
    }
    for country, cities in {
        "France": ["Paris.", "Berlin.", "a small dog"],
        "Japan": ["Tokyo.", "Madrid.", "中国"],
        "Italy": ["Rome.", "Oslo and Vienna, which is far away from all others."],
    }.items()
]
STORIES = [
    {"text": "Once upon a time there was a dog. It liked to run in the garden. " * 3},
    {"text": "<|im_start|>user\nHi 😀 é<|im_end|>\n"},
]
COMMON: dict[str, Any] = {"dataset_path": "json", "test_split": "test"}
TASKS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "capitals": (
        QUESTIONS,
        {
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": "acc"}],
        },
    ),
    "stories": (
        STORIES,
        {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "word_perplexity"}],
        },
    ),
}


def written(folder: Path) -> TaskManager:
    """The tasks, each as a file of its own over a file of its data."""
    for name, (rows, fields) in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files = {"dataset_kwargs": {"data_files": {"test": str(data)}}}
        task = {"task": name} | COMMON | files | fields
        (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
    return TaskManager(include_path=str(folder), include_defaults=False)


def _likelihoods(answers: list[Any]) -> list[float]:
    """The log likelihoods of one question's answers, which come beside whether each is the likeliest, or of one text, which come alone."""
    return [float(one[0] if isinstance(one, list | tuple) else one) for one in answers]


def main(url: str, tokenizer: str, *models: str) -> None:
    """Evaluate the models, and print each one's accuracy and the log likelihoods of each task, in the order of its data."""
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        tasks = written(Path(folder))
        for model in models:
            found = lm_eval.simple_evaluate(
                model="local-completions",
                model_args={
                    "model": model,
                    "base_url": f"{url}/completions",
                    "tokenizer": tokenizer,
                    "tokenizer_backend": "huggingface",
                    "max_retries": 1,
                },
                tasks=list(TASKS),
                task_manager=tasks,
                bootstrap_iters=0,
            )
            told[model] = {"accuracy": found["results"]["capitals"]["acc,none"]} | {
                task: [_likelihoods(one["filtered_resps"]) for one in samples]
                for task, samples in found["samples"].items()
            }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
