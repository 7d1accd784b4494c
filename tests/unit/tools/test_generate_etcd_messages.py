"""The generated messages of etcd are what their definitions say."""

from tools.generate_etcd_messages import FOLDER, generate


def test_the_committed_messages_are_those_of_the_definitions() -> None:
    for name, text in generate().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text
