"""The migration page says what the options' table says."""

from tools.migration_page import COMMAND, PAGE, page


def test_the_page_is_what_the_table_of_options_makes() -> None:
    text = PAGE.read_text("utf-8")
    assert page(text) == text, f"run {COMMAND}"
