"""
The jobs of the helper process: llama.cpp, llguidance and a JSON Schema validator, run with a client's constraint.

Source: https://github.com/xorbitsai/xllamacpp, https://github.com/guidance-ai/llguidance, https://github.com/Stranger6667/jsonschema
"""

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any, NoReturn

import jsonschema_rs
import xllamacpp
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from unilect.constraints import ConstraintError, gbnf, is_llguidance, schema_grammar
from unilect.constraints.normal import normal
from unilect.constraints.schema import analyse, patterns
from unilect.runtime.socket_folders import make_folder

MAX_GBNF = 1024 * 1024  # of a schema
_TRIED_TOKENS = 4
#: The processor time that llama.cpp may take to read a grammar and to hold all 4,096 tokens of the bundled model against it five
#: times. A usual grammar takes 10 to 20 ms, and a long one 10 us for each byte; other models have up to 60 times as many tokens.
_WALKED_TOKENS = 5
_WALKED_TOKENS_OF_GBNF = 40  # what is hard may stand behind a text
_WALK_S, _WALK_S_PER_BYTE = 0.25, 15e-6
#: A walk through a grammar takes any token that it allows, and ends only where nothing else is allowed. llama.cpp holds the whole
#: vocabulary against a grammar only where the first choice breaks it: so the first choice is NUL, which breaks every grammar.
_NUL, _ENDS, _FAR = 188, (4087, 4088, 4089), 1e5  # ids of the bundled model
_ANY = 100.0
_WALK: dict[str, Any] = {
    "temperature": _ANY,
    "samplers": ["temperature"],
    "seed": 7,
    "logit_bias": [[_NUL, _FAR], *([end, -_FAR] for end in _ENDS)],
}
_SHOWN = 200
_SOCKET = "helper.sock"
_ROOT = "response-format"
_SPACE = '| " "'  # llama.cpp's own takes up to 20 blanks, and a weak model writes them
_DRAFTS = (jsonschema_rs.Draft202012Validator, jsonschema_rs.Draft7Validator)
_BACKTRACKS = 1_000_000
#: A token of the model's vocabulary, which is not known here, outside of texts, patterns and comments.
_LARK_TOKEN = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|(<[^<>\s]{1,200}>)'
)
_STAND_IN = "<[97]>"


class Jobs:
    """
    The jobs: each public method is a job of that name.

    Args:
        model: A GGUF file with which llama.cpp runs grammars.
        mute: This process's stderr is captured for llama.cpp's messages, and otherwise discarded.
    """

    def __init__(self, model: str, mute: bool = True) -> None:
        folder = make_folder(_SOCKET)
        try:
            self._server = xllamacpp.Server(_parameters(model, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # nobody calls it there
        self._tokenizer = LLTokenizer("byte")
        can = mute and hasattr(os, "memfd_create")
        self._stderr = os.memfd_create("stderr") if can else None
        if self._stderr is not None:
            os.dup2(self._stderr, 2)

    def do(self, job: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a job; its answer, or the reason why the constraint is refused."""
        try:
            return {"done": getattr(self, job)(**arguments)}
        except ConstraintError as error:
            return {"refused": str(error)}
        except MemoryError:
            return {"refused": "it takes too much memory. Make it smaller.", "last": True}
        except RecursionError:
            return {"refused": "it is nested too deep. Flatten it."}

    def gbnf(self, grammar: str) -> None:
        """Run a grammar in llama.cpp for some tokens, each with a time limit."""
        gbnf.analyse(grammar)
        self._follow(grammar, _WALKED_TOKENS_OF_GBNF)

    def schema_to_gbnf(self, schema: str) -> str:
        """Return the grammar of a schema, after running it for some tokens; it leaves out patterns that are too hard to follow."""
        self.schema(schema)
        decoded = normal(json.loads(schema))
        hard = set()
        for pattern in patterns(decoded):  # a walk may not come to where they stand
            try:
                self._run(schema_grammar.grammar_of({"type": "string", "pattern": pattern}))
            except ConstraintError:
                hard.add(pattern)
        grammar = schema_grammar.grammar_of(decoded, hard)
        self._run(grammar)
        return grammar

    def takes(self, schema: str) -> None:
        """Convert a schema as llama.cpp itself does for a tool that may be called, and run that for some tokens."""
        self._run(_compact(self._convert(schema)))

    def _run(self, grammar: str) -> None:
        gbnf.analyse(grammar, MAX_GBNF)
        self._follow(grammar)

    def llguidance(self, grammar: str) -> None:
        """Run a grammar, llguidance's own or GBNF, in llguidance for some tokens."""
        matcher = self._matcher(grammar)
        for _ in range(_TRIED_TOKENS):
            mask = matcher.compute_bitmask()
            self._check(matcher)
            if matcher.is_stopped():
                return
            token = _first(mask)
            if token is None or token == self._tokenizer.eos_token:
                return
            matcher.consume_token(token)
            self._check(matcher)

    def matches(self, grammar: str, text: str) -> str | None:
        """Return the reason why a text does not satisfy a grammar; None if it does."""
        matcher = self._matcher(grammar)
        for place, token in enumerate(text.encode()):
            if matcher.is_stopped() or not matcher.consume_token(token):
                return f"it does not allow the text from byte {place} on"
        return None if matcher.is_accepting() else "the text ends before it is satisfied"

    def schema(self, schema: str) -> list[tuple[str, str]]:
        """Return the keywords that a schema uses, and where, after checking that the schema is valid."""
        decoded = normal(json.loads(schema))
        uses = analyse(decoded)
        _validator(decoded)
        return [(use.keyword, use.path) for use in uses]

    def validate(self, schema: str, text: str) -> str | None:
        """Return the reason why a JSON text does not satisfy a schema; None if it does."""
        try:
            value = json.loads(text, parse_constant=_no_number)
        except ValueError as error:
            return f"it is not valid JSON: {error}"
        try:
            for found in _validator(normal(json.loads(schema))).iter_errors(value):
                where = "".join(f"[{json.dumps(step)}]" for step in found.instance_path)
                return f"at ${where[:_SHOWN]}: {found.message[:_SHOWN]}"
        except ValueError as error:  # a pattern that takes too many steps
            return str(error)[:_SHOWN]
        return None

    def _convert(self, schema: str) -> str:
        """
        Return llama.cpp's grammar of a schema for a chat, with rules around it.

        `xllamacpp.json_schema_to_grammar` returns llguidance's format, which llama.cpp runs with a token table that is wrong
        for vocabularies with a space prefix.
        """
        try:
            answer = self._server.handle_chat_completions(
                {
                    "messages": [{"role": "user", "content": "a"}],
                    "n_predict": 1,
                    "temperature": 0,
                    "cache_prompt": False,
                    "verbose": True,  # tells the grammar
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {"schema": json.loads(schema)},
                    },
                }
            )
        except (RuntimeError, ValueError) as error:
            _refuse(str(error).rpartition("JSON schema error at ")[2])
        if "error" in answer:
            self._raise_error(answer["error"])
        return str(answer["__verbose"]["generation_settings"]["grammar"])

    def _follow(self, grammar: str, tokens: int = _WALKED_TOKENS) -> None:
        if self._stderr is not None:
            os.ftruncate(self._stderr, 0)
            os.lseek(self._stderr, 0, os.SEEK_SET)
        grammar = gbnf.without_tokens(grammar)
        begun = time.process_time()
        answer = self._server.handle_completions(
            {"prompt": "a", "n_predict": tokens, "cache_prompt": False, "grammar": grammar, **_WALK}
        )
        taken_s = time.process_time() - begun
        if "error" in answer:
            self._raise_error(answer["error"])
        if taken_s > _WALK_S + _WALK_S_PER_BYTE * len(grammar):
            _refuse(
                "the grammar is too ambiguous: each token takes too long. Use fewer adjacent or nested repetitions and "
                "alternatives that begin alike.",
                2 * _SHOWN,
            )

    def _raise_error(self, error: dict[str, Any]) -> NoReturn:
        message = str(error.get("message"))
        if "bad_alloc" in message:
            raise MemoryError
        _refuse(self._read_messages() or message)

    def _read_messages(self) -> str:
        """Read the messages of llama.cpp's parser."""
        if self._stderr is None:
            return ""
        written = os.pread(self._stderr, 4096, 0).decode(errors="replace")
        line = next((line for line in written.splitlines() if "grammar" in line), "")
        return line.rpartition("error parsing grammar: ")[2]

    def _matcher(self, grammar: str) -> LLMatcher:
        if not is_llguidance(grammar):
            gbnf.analyse(grammar)
            try:
                grammar = gbnf_to_lark(grammar)
            except Exception as error:  # noqa: BLE001 - it raises the bare class
                _refuse(str(error))
        else:
            grammar = _LARK_TOKEN.sub(lambda found: _STAND_IN if found[1] else found[0], grammar)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        self._check(matcher)
        return matcher

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            _refuse(str(matcher.get_error()).partition("\n<state>")[0])


def _parameters(model: str, folder: Path) -> Any:
    """Return the parameters of the smallest server that can run a grammar."""
    p = xllamacpp.CommonParams()
    p.model.path = model
    p.hostnames = [str(folder / _SOCKET)]
    p.verbosity = 0
    p.ui = False
    p.warmup = False
    p.fit_params = False
    p.use_jinja = True
    p.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    p.n_parallel = 1
    p.n_ctx = 256
    p.n_batch = p.n_ubatch = 32
    p.n_gpu_layers = 0
    p.cache_ram_mib = 0
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    return p


def _compact(grammar: str) -> str:
    """Return only the rules of a response format, with at most one space between two symbols, and none around."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.split("\n") if " ::= " in line)
    rules["root"], rules["space"] = _ROOT, _SPACE
    return schema_grammar.write_rules(rules)


def _validator(decoded: Any) -> Any:
    """Return a validator that fetches nothing; of the older draft if only that one accepts the schema."""
    options: dict[str, Any] = {
        "validate_formats": True,
        "retriever": _nothing,
        "pattern_options": jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS),
    }
    try:
        if isinstance(decoded, dict) and "$schema" in decoded:
            return jsonschema_rs.validator_for(decoded, **options)
        try:
            return _DRAFTS[0](decoded, **options)
        except ValueError:
            with_lists = _DRAFTS[1](decoded, **options)
            if any(use.keyword.startswith("items:list") for use in analyse(decoded)):
                return with_lists  # as before 2020
            raise
    except jsonschema_rs.ValidationError as error:
        where = "".join(f".{step}" for step in error.instance_path)
        _refuse(f"at ${where[:_SHOWN]}: {error.message[:_SHOWN]}", 2 * _SHOWN)
    except ValueError as error:
        _refuse(str(error))


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _nothing(uri: str) -> NoReturn:
    raise ValueError(f"`$ref` refers to {uri[:_SHOWN]}; URLs are not fetched")


def _first(mask: bytes) -> int | None:
    """Return the first token that a mask allows."""
    for place, byte in enumerate(mask):
        if byte:
            return 8 * place + (byte & -byte).bit_length() - 1
    return None


def _refuse(told: str, most: int = _SHOWN) -> NoReturn:
    """
    Raises:
        ConstraintError: With a library's message, on one line.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in told).split())
    raise ConstraintError(line[:most].rstrip(".") + ".")
