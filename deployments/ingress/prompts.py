"""A body's prompts as tokens: template, then tokeniser."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.ingress.chat_template import ChatTemplate
from deployments.ingress.tokenising import Tokeniser
from deployments.rest.openai_protocol import ChatBody, CompletionBody
from deployments.telemetry.tracing import RequestTrace
from engine.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Prompts:
    """max_model_len: tokens of prompt and output together."""

    template: ChatTemplate
    tokeniser: Tokeniser
    max_model_len: int

    async def encode(
        self, body: ChatBody | CompletionBody, trace: RequestTrace
    ) -> list[tuple[int, ...]]:
        """The tokens of each prompt. Raises InvalidRequest."""
        if isinstance(body, ChatBody):
            with trace.step("template"):
                text = self.template.render(body.chat(), body.chat_template_kwargs)
            self._check_length(text, "messages")
            with trace.step("tokenise"):
                return await self.tokeniser.encode([text], special_tokens=False)
        prompts = body.prompts()
        texts = [p for p in prompts if isinstance(p, str)]
        for text in texts:
            self._check_length(text, "prompt")
        with trace.step("tokenise"):
            encoded = iter(await self.tokeniser.encode(texts, special_tokens=True))
        return [next(encoded) if isinstance(p, str) else p for p in prompts]

    def _check_length(self, text: str, param: str) -> None:
        """Refuses a hopeless text before its tokens are counted, which would take long."""
        if len(text) > self.max_model_len * self.tokeniser.max_chars_per_token:
            raise InvalidRequest(
                f"The prompt has {len(text)} characters, which this model's context of"
                f" {self.max_model_len} tokens can't hold. Shorten it.",
                code="context_length_exceeded",
                param=param,
            )
