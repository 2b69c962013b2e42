"""Chat templates of public models and tokenizers with their special tokens.

Templates are those that TRL ships as the models' own (Apache-2.0), but for that of SmolLM2-135M-Instruct (Apache-2.0),
which is below. The tokenizers have bytes as tokens, beside those that a template means.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import chat_template_utils as trl_templates

SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_TEXT = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_LLAMA = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|eom_id|>", "<|python_tag|>"),
)
_HARMONY = (
    *("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>"),
    *("<|message|>", "<|call|>"),
)


@dataclass(frozen=True)
class Family:
    """Models with one chat template.

    Attributes:
        template: Text of the chat template.
        specials: Special tokens; the last that the template writes ends a message.
        end: Token that ends a reply.
        call: Reply that submits with a tool, with SOURCE for the source as JSON text or as it is; None without tools.
        code: Reply that submits code, with SOURCE for the source.
        reasoning: Reply that reasons ("REASON") before it submits code.
        texts: Tokens of their own that decoding keeps.
    """

    template: str
    specials: tuple[str, ...]
    end: str
    call: str | None
    code: str = "Here:\n```cpp\nSOURCE```"
    reasoning: str = "<think>\nREASON\n</think>\n\nHere:\n```cpp\nSOURCE```"
    texts: tuple[str, ...] = ()

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A fresh tokenizer, as transformers would load it."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        bytewise = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
        bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        bytewise.decoder = decoders.ByteLevel()
        bytewise.add_special_tokens(list(self.specials))
        bytewise.add_tokens([AddedToken(text, special=False, normalized=False) for text in self.texts])
        return PreTrainedTokenizerFast(
            tokenizer_object=bytewise,
            chat_template=self.template,
            bos_token=self.specials[0],
            eos_token=self.end,
            pad_token=self.specials[0],
            additional_special_tokens=list(self.specials),
        )


_HERMES = '<tool_call>\n{"name": "submit", "arguments": {"source": JSON}}\n</tool_call>'
_XML = "<tool_call>\n<function=submit>\n<parameter=source>\nSOURCE</parameter>\n</function>\n</tool_call>"

FAMILIES = {
    "qwen3": Family(
        trl_templates.qwen3_chat_template, _CHATML, "<|im_end|>", f"<think>\n\n</think>\n\n{_HERMES}", texts=_QWEN_TEXT
    ),
    # That of Qwen2.5-Coder too.
    "qwen2.5": Family(trl_templates.qwen2_5_chat_template, _CHATML, "<|im_end|>", _HERMES, texts=_QWEN_TEXT[2:]),
    # Calls as Qwen3-Coder's, in a template that TRL does not know by its text.
    "qwen3-coder form": Family(
        "{#- changed -#}" + trl_templates.qwen3_5_nothink_chat_template, _CHATML, "<|im_end|>", _XML, texts=_QWEN_TEXT
    ),
    "hermes form": Family(
        "{#- changed -#}" + trl_templates.qwen2_5_chat_template, _CHATML, "<|im_end|>", _HERMES, texts=_QWEN_TEXT
    ),
    "llama3": Family(trl_templates.llama3_chat_template, _LLAMA, "<|eot_id|>", None),
    "llama3.1": Family(
        trl_templates.llama3_1_chat_template,
        _LLAMA,
        "<|eot_id|>",
        '{"name": "submit", "parameters": {"source": JSON}}',
    ),
    "gpt-oss": Family(
        trl_templates.gptoss_chat_template,
        _HARMONY,
        "<|return|>",
        "<|channel|>analysis<|message|>REASON<|end|><|start|>assistant to=functions.submit<|channel|>commentary json"
        '<|message|>{"source": JSON}<|call|>',
        code="<|channel|>final<|message|>Here:\n```cpp\nSOURCE```",
        reasoning="<|channel|>analysis<|message|>REASON ```cpp\nint no;\n```<|end|><|start|>assistant<|channel|>final"
        "<|message|>Here:\n```cpp\nSOURCE```",
    ),
    "smollm2": Family(SMOLLM2_TEMPLATE, _CHATML, "<|im_end|>", None),
}
