"""Never writes the letter e."""


async def get_custom_guided_decoding_logits_processor(request, tokenizer):
    forbidden = [index for index in range(len(tokenizer)) if "e" in tokenizer.decode([index]).lower()]

    def without_e(input_ids, scores):
        scores[forbidden] = float("-inf")
        return scores

    return without_e
