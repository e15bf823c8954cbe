// The parts of the tool that the sources of the lab's commands (`simulate …` and `drop-compute`) use without a prefix. Only
// these sources include it.
#pragma once

#include "cli/common/command_line.h"
#include "cli/common/monotonic.h"
#include "cli/common/option_values.h"
#include "cli/common/plot.h"
#include "cli/common/progress.h"
#include "cli/common/result_writer.h"
#include "cli/common/syntax.h"
#include "cli/common/threads.h"

namespace unisono::lab {

using cli::Arguments;
using cli::check_writable;
using cli::CommandSyntax;
using cli::failed;
using cli::first_wrong;
using cli::make_app;
using cli::monotonic_now;
using cli::of_option;
using cli::on_threads;
using cli::OutputFile;
using cli::OutputOptions;
using cli::parse_arguments;
using cli::Progress;
using cli::progress_options;
using cli::Sink;
using cli::syntax_of;
using cli::usage_error;
using cli::write_svg;

}  // namespace unisono::lab
