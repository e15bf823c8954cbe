#include "cli/common/command_line.h"

#include <fmt/format.h>

#include <CLI/Error.hpp>
#include <algorithm>

#include "cli/common/text.h"
#include "cli/common/verdict.h"

namespace unisono::cli {
namespace {

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string usage) : usage_(std::move(usage)) { column_width(34); }
  std::string make_usage(const CLI::App*, std::string) const override { return "Usage: " + usage_ + "\n"; }
  std::string make_footer(const CLI::App* app) const override { return app->get_footer() + "\n"; }

 private:
  std::string usage_;
};

// The option that the first unknown word with a dash most likely meant.
std::string hint(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    for (const auto& name : option->get_snames()) names.push_back("-" + name);
  }
  for (const auto& word : arguments) {
    const auto name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || name == "--") continue;
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const auto meant = nearest_name(name, names);
    return meant.empty() ? fmt::format("there is no option '{}'.", name)
                         : fmt::format("there is no option '{}'. Did you mean '{}'?", name, meant);
  }
  return "";
}

}  // namespace

std::unique_ptr<CLI::App> make_app(const CommandLineText& text) {
  auto app = std::make_unique<CLI::App>(text.description, text.name);
  app->formatter(std::make_shared<HelpFormatter>(text.usage));
  app->footer(text.footer);
  app->set_help_flag("-h,--help", "this page");
  return app;
}

void add_choice(CLI::App& app, std::string& target, const Choice& choice) {
  auto text = fmt::format("{}: {}", choice.meaning, fmt::join(choice.words, " "));
  if (!choice.fallback.empty()) text += fmt::format(" [{}]", choice.fallback);
  auto* option = app.add_option(choice.names, target, text)->type_name(choice.value);
  set_choices(*option, choice.words);
}

CommandSyntax syntax_of(const CommandLineText& text, CLI::App& app) {
  return {.name = text.name.substr(text.name.find(' ') + 1),
          .summary = {},  // the tool's table has it
          .usage = text.usage,
          .description = text.description,
          .footer = text.footer,
          .options = options_of(app),
          .runs_program = text.runs_program};
}

std::optional<int> parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ConversionError& error) {
    std::string_view said = error.what();  // "Could not convert: --warmup = -3"
    if (said.find("--") != said.npos) said.remove_prefix(said.find("--"));
    return usage_error(app.get_name(), fmt::format("{}: not a value that it takes", said));
  } catch (const CLI::Error& error) {
    const auto meant = hint(app, arguments);
    return usage_error(app.get_name(), meant.empty() ? error.what() : meant);
  }
  return std::nullopt;
}

int usage_error(const std::string& command, std::string_view message) {
  fmt::print(stderr, "{}: {}\nTry '{} --help'.\n", command, message, command);
  return exit_code_usage;
}

int failed(const CommandLineText& text, const Status& status) {
  fmt::print(stderr, "{}: {}\n", text.name, status.message());
  return 1;
}

}  // namespace unisono::cli
