#include "cli/common/command_line.h"

#include <fmt/format.h>

#include <CLI/Error.hpp>
#include <algorithm>

#include "cli/common/job_outcome.h"
#include "cli/common/text.h"

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

// Returns the long and the short names of all options.
std::vector<std::string> option_names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    for (const auto& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

bool is_flag(const CLI::App& app, const std::string& word) {
  const auto* const option = word.starts_with('-') ? app.get_option_no_throw(word) : nullptr;
  return option != nullptr && option->get_items_expected_max() == 0;
}

// Returns a message about the first word that nothing reads. For an unknown option, the message names the known option that is
// most similar. Returns an empty text if there is no such word.
std::string about_unread_word(const CLI::App& app, const Arguments& arguments) {
  const auto unread = app.remaining();
  if (unread.empty()) return {};
  const auto& word = unread.front();
  if (word.size() > 1 && word.starts_with('-')) {
    const auto name = word.substr(0, word.find('='));
    // A name of one letter is similar to every other.
    const auto meant = name.starts_with("--") ? nearest_name(name, option_names_of(app)) : std::string();
    return fmt::format("there is no option '{}'.{}", name, meant.empty() ? "" : fmt::format(" Did you mean '{}'?", meant));
  }
  const auto at = std::find(arguments.begin(), arguments.end(), word);
  if (at == arguments.begin() || at == arguments.end() || !is_flag(app, at[-1]))
    return fmt::format("there is no use for the word '{}'", word);
  const bool has_file = at[-1] == "--json" && app.get_option_no_throw("--output") != nullptr;
  return fmt::format("{} takes no value, and there is no other use for the word '{}'{}", at[-1], word,
                     has_file ? "; --output FILE writes to a file" : "");
}

// Returns a message about an option that has too few values or too many. CLI::ArgumentMismatch knows the option only as the
// beginning of its own message, such as "--peers: 1 required N missing".
std::string about_mismatch(const CLI::App& app, std::string_view said) {
  const std::string name(said.substr(0, said.find(':')));
  const auto* const option = app.get_option_no_throw(name);
  if (option == nullptr) return std::string(said);
  if (said.find("At Most") != said.npos) return fmt::format("{} is given more than once", name);
  const auto count = option->get_items_expected_min();
  return count == 1 ? fmt::format("{} needs a value: {}", name, option->get_type_name())
                    : fmt::format("{} needs {} values: {}", name, count, option->get_type_name());
}

// Returns a message about a value that has another type. CLI::ConversionError says, for example, "Could not convert: --warmup =
// -3".
std::string about_conversion(const CLI::App& app, std::string_view said) {
  if (said.find("--") != said.npos) said.remove_prefix(said.find("--"));
  const std::string name(said.substr(0, said.find(' ')));
  return is_flag(app, name) ? fmt::format("{} takes no value", name) : fmt::format("{}: not a value that it takes", said);
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
          .summary = {},  // the summary is in the tool's table of commands
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
    return usage_error(app.get_name(), about_conversion(app, error.what()));
  } catch (const CLI::ArgumentMismatch& error) {
    return usage_error(app.get_name(), about_mismatch(app, error.what()));
  } catch (const CLI::Error& error) {
    const auto unread = about_unread_word(app, arguments);
    return usage_error(app.get_name(), unread.empty() ? error.what() : unread);
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
