"""Short-time Fourier transforms and their inverse, as `torch.stft` and `torch.istft`."""

from __future__ import annotations

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.fft.functions import fft, ifft, irfft, rfft
from baregrad.tensor import Tensor
from baregrad.tensor.array.core import check_shape_is_int
from baregrad.tensor.array.link import session

# A sum of squared windows below this makes no number of what lies there, as with PyTorch.
_LEAST = 1e-11


def stft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool = True,
) -> Tensor:
    """Return the transforms of windows of a signal: (T,) or (B, T) to (..., frequencies, windows).

    Windows of n_fft begin every hop_length, n_fft // 4 unless given. window: (win_length,), with
    zeros around it up to n_fft; ones unless given. center: windows are around their times, and the
    signal is padded. onesided: half of the frequencies, as real signals have unless told otherwise.
    normalized: scaled by n_fft**-0.5. Without return_complex the parts are a last axis.
    """
    hop, window = _checked("stft", x, n_fft, hop_length, win_length, window)
    if x.ndim not in (1, 2):
        raise ShapeError("stft is of signals (T,) or (B, T)", found=f"shape {list(x.shape)}")
    half = not x.is_complex() and not (window.is_complex()) if onesided is None else onesided
    if half and (x.is_complex() or window.is_complex()):
        raise DTypeError("half of the frequencies is of real signals", hint="onesided=False")
    signal = x.unsqueeze(0) if x.ndim == 1 else x
    if center:
        side = n_fft // 2
        if pad_mode == "reflect" and side >= signal.shape[-1]:
            raise ShapeError(
                "a signal is reflected at its ends by less than its length",
                found=f"{signal.shape[-1]} samples", wanted=f"more than {side}",
            )
        signal = signal.unsqueeze(1).pad((side, side), mode=pad_mode).squeeze(1)
    if signal.shape[-1] < n_fft:
        raise ShapeError(
            "a window is longer than the signal", found=f"{n_fft} of {signal.shape[-1]}"
        )
    frames = signal.unfold(-1, n_fft, hop) * window
    made = rfft(frames) if half else fft(frames)
    made = (made * n_fft**-0.5 if normalized else made).mT
    found: Tensor = made[0] if x.ndim == 1 else made
    return found if return_complex else found.view_as_real()


def istft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """Return the signal whose `stft` is nearest to `x`, (..., frequencies, windows).

    length: of the signal, what windows reach unless given. Raises ArgumentError where no window
    reaches a part of it.
    """
    if not x.is_complex() or x.ndim not in (2, 3):
        raise ShapeError(
            "istft is of complex transforms (..., frequencies, windows)",
            found=f"{x.dtype} {list(x.shape)}",
        )
    hop, window = _checked("istft", x, n_fft, hop_length, win_length, window)
    half = x.shape[-2] != n_fft if onesided is None else onesided
    if x.shape[-2] != (n_fft // 2 + 1 if half else n_fft):
        raise ShapeError(
            "istft of so many frequencies", found=f"{x.shape[-2]}",
            wanted=f"{n_fft // 2 + 1 if half else n_fft} for n_fft {n_fft}",
        )
    if return_complex and half:
        raise DTypeError("a complex signal has all frequencies", hint="onesided=False")
    spectra = (x.unsqueeze(0) if x.ndim == 2 else x).mT
    spectra = spectra * n_fft**0.5 if normalized else spectra
    # A real signal is that of the first half of its frequencies.
    frames = ifft(spectra) if return_complex else irfft(spectra[..., : n_fft // 2 + 1], n_fft)
    count = frames.shape[-2]
    signal = _added(frames * window, hop)
    size = window.abs().square() if window.is_complex() else window.square()
    weight = _added(size.expand(1, count, n_fft), hop)
    start = n_fft // 2 if center else 0
    reach = (count - 1) * hop + n_fft
    stop = reach - start if length is None else min(reach, start + length)
    signal, weight = signal[:, start:stop], weight[:, start:stop]
    # While a function is captured there are no numbers yet.
    if not session().watching.downloads and (weight < _LEAST).any().item():
        raise ArgumentError("no window reaches a part of the signal", hint="make hops shorter")
    found = signal / weight
    if length is not None and stop < start + length:
        found = found.pad((0, start + length - stop))
    return found[0] if x.ndim == 2 else found


def _checked(
    what: str, x: Tensor, n_fft: int, hop_length: int | None, win_length: int | None,
    window: Tensor | None,
) -> tuple[int, Tensor]:
    """The hop, and a window of n_fft."""
    check_shape_is_int(x.shape, what)
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    if n_fft < 1 or hop < 1 or not 0 < width <= n_fft:
        raise ArgumentError(
            f"{what} has windows of at most n_fft, and hops of at least 1",
            found=f"n_fft {n_fft}, hop_length {hop}, win_length {width}",
        )
    if window is None:
        window = Tensor.ones(width, dtype=x.real.dtype, device=x.device)
    if window.shape != (width,):
        raise ShapeError("a window", found=f"shape {list(window.shape)}", wanted=f"[{width}]")
    left = (n_fft - width) // 2
    return hop, window.pad((left, n_fft - width - left)) if width < n_fft else window


def _added(frames: Tensor, hop: int) -> Tensor:
    """Frames (B, count, n) added up where they lie, one every `hop`: pieces of a hop, shifted."""
    n = frames.shape[-1]
    pieces = -(-n // hop)
    padded = frames.pad((0, pieces * hop - n)).unflatten(-1, (pieces, hop))
    total: Tensor | None = None
    for piece in range(pieces):
        moved = padded[..., piece, :].pad((0, 0, piece, pieces - 1 - piece))
        total = moved if total is None else total + moved
    assert total is not None
    return total.flatten(-2)
