// Runs a tape of rows on views.
#pragma once

#include "../tape.h"

namespace tritium::TRITIUM_ISA::tape {

void run_rows(const Tape& tape, const Call& call);

}  // namespace tritium::TRITIUM_ISA::tape
