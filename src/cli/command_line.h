// How every command reads its options: one look for help pages, and errors that say what was probably meant.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unisono::cli {

struct CommandLineText {
  std::string name;         // "unisono launch"
  std::string usage;        // "unisono launch -n COUNT [OPTIONS] -- PROGRAM [ARGUMENTS]"
  std::string description;
  std::string footer;       // examples, exit codes, environment
};

std::unique_ptr<CLI::App> make_app(const CommandLineText& text);

// The exit code if the process should end now (help was asked for, or the words are wrong), else nothing.
std::optional<int> parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

// Prints the message and where help is; gives the exit code for wrong usage.
int usage_error(const std::string& command, std::string_view message);

}  // namespace unisono::cli
