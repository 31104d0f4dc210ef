"""
The name of a file's quantization: the one that it gives itself, unless its tensors are of another.

Sources: https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h (llama_ftype),
https://github.com/ggml-org/ggml/blob/master/include/ggml.h (ggml_type)
"""

import re
from collections.abc import Mapping

from unilect.api.parameters.support import names

#: llama.cpp's names of files by its numbers; some are no longer made.
_FILE_TYPES = names(
    "F32 F16 Q4_0 Q4_1 Q4_1 Q4_2 Q4_3 Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ2_XXS "
    "IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 Q4_0 Q4_0 Q4_0 TQ1_0 TQ2_0 MXFP4"
)
#: Names of the types of tensors by their numbers.
_TENSOR_TYPES = names(
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S "
    "IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0 Q4_0 Q4_0 TQ1_0 TQ2_0 IQ4_NL IQ4_NL IQ4_NL MXFP4 NVFP4"
)
_BITS = re.compile(r"Q(\d)_")


def name_quantization(file_type: object, tensors: Mapping[int, int]) -> str | None:
    """
    Return the name of a quantization, such as `Q4_K_M`.

    Args:
        file_type: What the file says, `general.file_type`.
        tensors: The number of weights by the type of their tensors.

    Returns:
        None where neither says anything.
    """
    told = _name_at(_FILE_TYPES, file_type)
    most = _name_at(_TENSOR_TYPES, max(tensors, key=tensors.__getitem__)) if tensors else None
    # a file of four bits has tensors of six, too, and other kinds of four
    return told if most is None or (told is not None and _bits(told) == _bits(most)) else most


def _name_at(known: tuple[str, ...], number: object) -> str | None:
    fits = isinstance(number, int) and 0 <= number < len(known)
    return known[number] if fits and isinstance(number, int) else None


def _bits(name: str) -> str:
    found = _BITS.search(name)
    return name if found is None else found[1]
