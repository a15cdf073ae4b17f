// tconv: transposed convolution, forward and backward. See docs/design.md.
#pragma once

#include "tconv/error.h"
#include "tconv/explain.h"
#include "tconv/info.h"
#include "tconv/launches.h"
#include "tconv/phases.h"
#include "tconv/plan.h"
#include "tconv/prepare.h"
#include "tconv/problem.h"
#include "tconv/tune.h"
