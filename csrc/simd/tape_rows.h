// Runs a tape of rows on views.
// Knows nothing of what its parts compute.
#pragma once

#include "../tape.h"

namespace tritium::TRITIUM_ISA::tape {

void run_rows(const Tape& tape, const Call& call);

}  // namespace tritium::TRITIUM_ISA::tape
