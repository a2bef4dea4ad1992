"""SIN float32[6, 8]
  asked for at /tmp/pytest-of-root/pytest-560/test_the_command_says_what_it_0/program.py:9
  48 of 48 differ by more than 0.000108, most at 18: -1.3294978141784668 here, -0.8863319158554077 there

Written by `baregrad diff`.
"""

from baregrad.apps.diff.case import show

GRAPH = """\
%0 = PARAM f32[6,8] : Param(slot=0, shape=(6, 8))
%1 = RESHAPE f32[6,1,8] %0 : (6, 1, 8)
%2 = EXPAND f32[6,8,8] %1 : (6, 8, 8)
%3 = PARAM f32[8,8] : Param(slot=1, shape=(8, 8))
%4 = PERMUTE f32[8,8] %3 : (1, 0)
%5 = RESHAPE f32[1,8,8] %4 : (1, 8, 8)
%6 = EXPAND f32[6,8,8] %5 : (6, 8, 8)
%7 = MUL f32[6,8,8] %2 %6
%8 = REDUCE f32[6,8] %7 : Reduce(monoid=add<f32>, axes=(2,))
%9 = SIN f32[6,8] %8
%10 = RESHAPE f32[6,1,8] %9 : (6, 1, 8)
%11 = EXPAND f32[6,8,8] %10 : (6, 8, 8)
%12 = PARAM f32[8,8] : Param(slot=2, shape=(8, 8))
%13 = PERMUTE f32[8,8] %12 : (1, 0)
%14 = RESHAPE f32[1,8,8] %13 : (1, 8, 8)
%15 = EXPAND f32[6,8,8] %14 : (6, 8, 8)
%16 = MUL f32[6,8,8] %11 %15
%17 = REDUCE f32[6,8] %16 : Reduce(monoid=add<f32>, axes=(2,))
%18 = SIN f32[6,8] %17
%19 = RESHAPE f32[6,1,8] %18 : (6, 1, 8)
%20 = EXPAND f32[6,8,8] %19 : (6, 8, 8)
%21 = PARAM f32[8,8] : Param(slot=3, shape=(8, 8))
%22 = PERMUTE f32[8,8] %21 : (1, 0)
%23 = RESHAPE f32[1,8,8] %22 : (1, 8, 8)
%24 = EXPAND f32[6,8,8] %23 : (6, 8, 8)
%25 = MUL f32[6,8,8] %20 %24
%26 = REDUCE f32[6,8] %25 : Reduce(monoid=add<f32>, axes=(2,))
%27 = SIN f32[6,8] %26
%28 = SINK token[] %27

"""
# The raw codes of the parameters, packed.
ARRAYS = [
    (
        "eNoBwAA//2y/AD5/Rge+vfIjP9/V1j2hIQm//SK5Pnnppj/mc3I//ic0v1X5ob/qjh+/bkUpPU7NFMDsCmC+A3qf"
        "v+B1O7+PVAu/GPKhvj3B0j4UcYU/l54Dvkborj8zSiq/IfmzPtJJZz+FicA9+FU+vzL2a78KW+q+1XphPis7gb8f"
        "Mla+4gsjvtt0Cj+az1s+afO1PlBhJ79wuQS+nrJIP8Aovz8PKaG/QcjBP6VFrD8GBEg/umaHPn66oL5soLo/v+n6"
        "P0iLXNo="
    ),
    (
        "eNoBAAH//lC9GT/DceA+wfjzPT84zr6jmsK6qBNgPl/h275L3gY+ELoSPiSVbT7nFsq+dNxhvkv4FL5tpce+Em0U"
        "P1dFKb6ck+A91ISwvX4fBz90V+E+Mi9YPmgIPL/kEo48aV1pPsBXqz6L6VK+cnobP4Ja4b4zzWG+9ZSfPqnzhTzv"
        "3io/HrKAPVghWL4B4AC+5zi6vrMO2r4yLlc+C19GPiPw3D47yYC+HiMQP6QwxL15WQY/aLkTvoMLe74ohao93wiw"
        "Pu3UWz1K3Ee+yebkvlox774ZlSs+OemoPh9RYL24W7e+y/+UPkSF2r7XZHO+XvlTPhUDQL9+4QM+jYhGvgY0FT2C"
        "MnlC"
    ),
    (
        "eNoBAAH//jS3zrwN+ok9q/FsPq5tgb6ng/I+C9d3Pj7/jz6vzcY+QWqGPlwOkD7Ea848s4Dzvq9hOL2cVIO+idDy"
        "vuZvsD2cEEK+2MCvvmoBsr5JPbc9d9r0PQyz4T48/Je7rM6xPuNR7z6BS8Q+2tZJvwOy0T7m2Oc9taUQPrJs/T3V"
        "pQI+rg3aPaYE9b3bRSK/dbQUvZUrib4PWbg+myHFvYHx4zza/5C+30ouvo7xe7sIgf2+iETNPfHSEL3kXMq+MqZM"
        "vy4fLz6VJsu92Og0vgM3ob2GARs/Z/2HvEGH7Dw0y/2+rJIMP6mVnD4YF7Y+qC2CPEJxnD6oO/09R01RPkvLT734"
        "eYWl"
    ),
    (
        "eNoBAAH//iaL+75Vl68+1x0lv/nLo73lnou9QfuxvoRHUT4nwoi9Ix4VvndwMT4drCK+dg3tPjrt7z3Z5yG+Hukl"
        "v5ww375dfLk+zi6KvLFHwb1hOQw/zefavo/nR75XTyG+7yJIPpd8Yr5FYVG+BvkIv4bzeD7ElIk+b5oivnMDXz2S"
        "nNy+qgshvpkr6z5UUTk9qSZFP/pYhr4HEkY+H3eFveshQT7ZiB27PY4/vsESlL5M0YI/HjTTvKAWLL+WY12+BHBn"
        "PmerKr7NLug+cxOrPjb+T73cLiG+bXyrvgLsbr6aavu+4IzNPmS9Bz+CYda+hKzJvrvpFr9vf6S+e4mEv+7ywr7p"
        "bIDk"
    ),
]
show(GRAPH, ARRAYS, {}, device='CPU', against='REF', tolerance=None)
