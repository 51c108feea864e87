r"""The same functions in a form that stays fast inside a compiled loop and under ``vmap`` over clients.

On the CPU, XLA runs the gradient of a convolution inside a loop ten to fifty times slower than outside one, and
``vmap`` over clients, each with its own kernel, makes a grouped convolution of it, which is slow everywhere.
:func:`lowered` rewrites a function's program; models need not know.  What becomes of its operations:

* **Convolutions** of one to three dimensions and any layout, stride, padding and dilation, transposed and grouped
  ones too: patches times kernel, one matrix product, or one *batched* product under ``vmap``.  Depthwise ones: a
  sum of shifted images.  Of one channel, on the CPU: patches in columns, so that each place of the window is an
  image.  A value alone, without derivative and without kernels per client, stays native, for a loop does it no harm.
  On the CPU, windows of 3 to 5 by 3 to 5 with 16 channels or more become products at interpolation points instead
  (Winograd; :mod:`evenhand._jaxpr.convolution` has the figures): twice as fast on a core, and off by 1e-5 of the
  gradient's size instead of 1e-6.  ``precision="highest"`` keeps patches.
* **Max-pooling** with at most nine numbers per window, windows side by side: maxima of strided slices with a
  gradient of their own, the native one also for ties.  Overlapping, padded and larger windows are faster natively,
  and so is every average.
* **Products** of a matrix by one with 2 to 32 columns and at least 128 rows, on the CPU: the gradient of the latter
  is computed transposed.
* **Products** of up to 512 rows by a matrix of at least 2^20 numbers, on the CPU: the gradient of the rows is computed
  with the matrix as the first operand.  XLA copies the second one before it multiplies by its transpose.
* **Products** of 2 to 32 rows by a matrix of at most 2^17 numbers, with at least 48 rows and columns, on the CPU: the
  gradient of the matrix multiplies a transposed copy of the rows.  A gradient of the MLP takes 0.92 of the time.
* **Products** of rows in several axes, such as those of tokens, by a matrix, on the CPU: those of rows in one axis. XLA
  would transpose the slopes for the gradient of the matrix; a gradient of the LSTM takes 0.9 of the time.
* Everything else, and functions that bring derivatives of their own (``custom_jvp``, ``custom_vjp``) or loop with
  ``while``, stay as they are.

All rules can be differentiated again, forwards and backwards.

Milliseconds for a value and its gradients on two CPU cores, batch 10, native / lowered; "clients": four side by
side with their own kernels; "alone": once, outside a loop; lowered to patches:

====================================  ==============  =====================  ==========
convolution, input and kernel         in a loop       in a loop, clients     alone
====================================  ==============  =====================  ==========
28x28x1, 5x5x32, first layer          6.5 / 0.7       52 / 2.8               1.2 / 1.4
14x14x32, 5x5x64                      92 / 9.0        643 / 40               8.1 / 7.9
32x32x3, 3x3x32, first layer          10.7 / 0.7      113 / 3.6              3.2 / 1.5
30x30x32, 3x3x64, no padding          510 / 13        2269 / 53              18 / 14
16x16x64, 3x3x64                      132 / 6.3       894 / 38               7.5 / 8.4
4x4x256, 3x3x256                      72 / 5.0        345 / 19               8.4 / 5.9
32x32x16, 3x3x32, stride 2            18 / 1.0        98 / 5.0               2.2 / 1.8
16x16x64, 1x1x128                     33 / 1.1        378 / 14               3.8 / 1.8
64x64x3, 7x7x64, stride 2, first      376 / 9.0       1750 / 22              9.1 / 12
16x16x32, 3x3x32, dilation 2          34 / 2.0        166 / 19               2.4 / 3.2
100x64, 5x128, one dimension          39 / 2.7        471 / 13               2.0 / 3.8
7x7x64, 5x5x32, transposed            32 / 9.3        139 / 59               17 / 13
8x8x8x4, 3x3x3x8, three dimensions    20 / 3.5        67 / 15                26 / 4.0
16x16x32, 3x3, depthwise              35 / 6.3        1489 / 14              8.8 / 4.0
16x16x64, 3x3x64, four groups         95 / 8.4        393 / 63               196 / 16
====================================  ==============  =====================  ==========

====================================  ==============  =====================  ==========
maximum, window / stride              in a loop       in a loop, clients     alone
====================================  ==============  =====================  ==========
14x14x64, 2x2 / 2                     4.6 / 2.0       22 / 5.3               3.1 / 1.1
28x28x64, 2x2 / 2                     14.1 / 9.9      42 / 19                11 / 3.6
30x30x32, 3x3 / 3                     3.2 / 2.8       20 / 16                3.9 / 2.7
100x128, 2 / 2                        1.6 / 1.2       7.7 / 5.1              2.0 / 1.2
32x32x32, 8x8 / 8 (stays native)      3.9 / 14        9.7 / 27               4.1 / 12
32x32x32, 3x3 / 2 (stays native)      5.3 / 12        21 / 96                5.5 / 14
16x16x64, 3x3 / 1 (stays native)      7.9 / 12        44 / 46                7.0 / 11
====================================  ==============  =====================  ==========

Microseconds for a step of descent in a loop, native / lowered; "clients": ten side by side:

==========================  ===============  ==============
product, rows by columns    batch 10         clients
==========================  ===============  ==============
60 by 10 (stays native)     9.4 / 9.2        42 / 52
128 by 10                   14 / 10          75 / 47
784 by 1 (stays native)     2.6 / 2.5        40 / 40
784 by 2                    43 / 17          268 / 139
784 by 10                   54 / 30          440 / 412
784 by 32                   72 / 48          630 / 435
784 by 62 (stays native)    90 / 95          1002 / 871
3136 by 10                  117 / 91         1559 / 963
784 by 128 (stays native)   173 / 234        1622 / 2161
==========================  ===============  ==============
"""

from __future__ import annotations

from evenhand._jaxpr.convolution import Convolution, convolution_apart
from evenhand._jaxpr.lowering import as_lowered, lowered, outer

__all__ = ["Convolution", "as_lowered", "convolution_apart", "lowered", "outer"]
