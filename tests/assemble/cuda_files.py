"""Stand-ins for the vendor's compilers, for machines that have none: where they lie, what they say.

`write_ptxas` writes a script that prints a version and copies its input behind a mark, or complains
where the input holds "bad". `NVRTC_SOURCE` is a C library with NVRTC's functions that does alike.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

PTXAS = """#!/bin/sh
if [ "$1" = --version ]; then echo "ptxas: NVIDIA (R) Ptx optimizing assembler"; echo "{release}"
exit 0; fi
for last; do :; done
{{ echo "CUBIN $1"; cat; }} > "$last"
if grep -q bad "$last"; then echo "ptxas fatal: syntax error near bad" >&2; exit 255; fi
"""

NVRTC_SOURCE = r"""
#include <stdlib.h>
#include <string.h>
typedef struct { char *text; char flag[64]; } program;
int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 7; return 0; }
const char *nvrtcGetErrorString(int status) {
  return status == 6 ? "NVRTC_ERROR_COMPILATION" : "?";
}
int nvrtcCreateProgram(program **made, const char *text, const char *name, int count,
                       const char *const *headers, const char *const *names) {
  if (count || name || headers || names) return 3;
  *made = calloc(1, sizeof(program));
  (*made)->text = strdup(text);
  return 0;
}
int nvrtcDestroyProgram(program **made) { free((*made)->text); free(*made); *made = 0; return 0; }
int nvrtcCompileProgram(program *made, int count, const char *const *flags) {
  if (count < 1) return 5;
  strncpy(made->flag, flags[0], 63);
  return strstr(made->text, "bad") ? 6 : 0;
}
static const char LOG[] = "error: bad is bad";
int nvrtcGetProgramLogSize(program *made, size_t *size) { *size = sizeof LOG; return 0; }
int nvrtcGetProgramLog(program *made, char *log) { memcpy(log, LOG, sizeof LOG); return 0; }
int nvrtcGetCUBINSize(program *made, size_t *size) { *size = strlen(made->flag); return 0; }
int nvrtcGetCUBIN(program *made, char *out) {
  memcpy(out, made->flag, strlen(made->flag));
  return 0;
}
int nvrtcGetPTXSize(program *made, size_t *size) { *size = strlen(made->text) + 1; return 0; }
int nvrtcGetPTX(program *made, char *out) { strcpy(out, made->text); return 0; }
"""


def write_ptxas(path: Path, release: str) -> Path:
    """Write a stand-in for ptxas of a release, which its version text tells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PTXAS.format(release=release))
    path.chmod(0o755)
    return path


def build_nvrtc(path: Path, compiler: str) -> Path:
    """Compile a stand-in for NVRTC."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=NVRTC_SOURCE.encode(), check=True)
    return path
