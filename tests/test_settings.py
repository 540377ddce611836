import io

import pytest

from evenload.errors import ConfigError, UnknownName
from evenload.settings import SETTINGS, Setting, resolve, unknown_variables, user_file, wants_color


@pytest.fixture
def layers(tmp_path):
    """``layers(flags, environ, project, user)``: settings from these and nothing else."""

    def make(flags=None, environ=None, project=None, user=None):
        folder, user_path = tmp_path / "project", tmp_path / "user" / "evenload.toml"
        for path, text in ((folder / "evenload.toml", project), (user_path, user)):
            path.parent.mkdir(exist_ok=True)
            if text is not None:
                path.write_text(text)
        return resolve(flags, environ=environ or {}, folder=folder, user=user_path)

    make.tmp_path = tmp_path
    return make


def test_each_layer_beats_the_one_below_and_the_source_is_known(layers):
    project, user = 'devices = "project"', 'devices = "user"'
    every = ({"devices": "flag"}, {"EVENLOAD_DEVICES": "variable"}, project, user)
    sources = ["--devices", "EVENLOAD_DEVICES", str(layers.tmp_path / "project/evenload.toml")]
    sources += [str(layers.tmp_path / "user/evenload.toml"), "default"]
    values = ["flag", "variable", "project", "user", "all"]
    for n_left_out, (value, source) in enumerate(zip(values, sources, strict=True)):
        for path in layers.tmp_path.rglob("evenload.toml"):
            path.unlink()
        given = [None] * n_left_out + list(every[n_left_out:])
        settings = layers(*given)
        assert (settings.devices, settings.source("devices")) == (value, source)
        assert settings.source("policy") == "default"


def test_defaults_and_the_ways_to_read_them(layers):
    settings = layers()
    assert dict(settings) == {name: setting.default for name, setting in SETTINGS.items()}
    assert settings["backend"] == settings.backend == "process"
    assert len(settings) == len(SETTINGS)
    with pytest.raises(AttributeError, match="no setting 'colour'"):
        settings.colour  # noqa: B018


def test_a_flag_that_was_not_given_and_an_empty_variable_are_no_values(layers):
    settings = layers({"devices": None}, {"EVENLOAD_DEVICES": ""})
    assert settings.source("devices") == "default"
    assert layers({"progress": False}).progress is False, "but False was given"


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", False), ("off", False), ("No", False), ("1", True), ("TRUE", True), ("on", True)],
)
def test_a_variable_may_say_no_in_several_ways(layers, text, value):
    assert layers(environ={"EVENLOAD_PROGRESS": text}).progress is value


def test_a_number_of_devices_may_be_a_number(layers):
    assert layers(project="devices = 2").devices == "2"
    assert layers({"devices": 2}).devices == "2"


def test_an_unknown_key_is_refused_with_the_nearest(layers):
    with pytest.raises(UnknownName) as caught:
        layers(project='devcies = "all"')
    assert "project/evenload.toml" in str(caught.value)
    assert "did you mean 'devices'?" in (caught.value.hint or "")
    with pytest.raises(UnknownName, match="flag"):
        layers({"devcies": "all"})
    with pytest.raises(UnknownName, match="tool"):
        layers(project="", user='[tool.evenload]\ndevices = "all"')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices = [1]", "is not text"),
        ("devices = true", "is not text"),
        ("progress = 1", "neither true nor false"),
        ('progress = "perhaps"', "neither true nor false"),
        ("devices = ", "no valid TOML"),
        ("\ufeffdevices", "no valid TOML"),
    ],
)
def test_a_wrong_value_is_told_with_its_file(layers, text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        layers(user=text)
    assert "user" in str(caught.value)
    assert caught.value.hint


def test_choices_are_held_to(layers):
    with pytest.raises(UnknownName, match="color in EVENLOAD_COLOR"):
        layers(environ={"EVENLOAD_COLOR": "alwyas"})


def test_files_that_cannot_be_read(layers, tmp_path):
    (tmp_path / "project" / "evenload.toml").mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        layers()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no valid TOML"):
        resolve(environ={}, folder=tmp_path / "none", user=tmp_path / "bytes.toml")


def test_a_lower_layer_is_checked_even_if_a_flag_overrides_it(layers):
    with pytest.raises(UnknownName):
        layers({"color": "never"}, project='color = "sometimes"')


def test_the_users_file(tmp_path, monkeypatch):
    assert user_file({"XDG_CONFIG_HOME": "/x"}).as_posix() == "/x/evenload/evenload.toml"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert user_file({}) == tmp_path / ".config" / "evenload" / "evenload.toml"


def test_the_current_folder_is_where_the_project_file_is_looked_for(tmp_path, monkeypatch):
    (tmp_path / "evenload.toml").write_text('policy = "pull"')
    monkeypatch.chdir(tmp_path)
    settings = resolve(environ={}, user=tmp_path / "none")
    assert (settings.policy, settings.source("policy")) == ("pull", "evenload.toml")


def test_variables_that_mean_nothing_are_listed():
    environ = {"EVENLOAD_DEVCIES": "x", "EVENLOAD_DEVICES": "x", "EVENLOAD_DEVICE": "x", "PATH": "x"}
    assert unknown_variables(environ) == ["EVENLOAD_DEVCIES"]


def test_names_of_flags_and_variables():
    setting = Setting("look_ahead", "x", "")
    assert (setting.flag, setting.variable) == ("--look-ahead", "EVENLOAD_LOOK_AHEAD")
    assert all(setting.help for setting in SETTINGS.values())


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("choice", "environ", "on_terminal", "elsewhere"),
    [
        ("auto", {}, True, False),
        ("auto", {"NO_COLOR": "1"}, False, False),
        ("auto", {"NO_COLOR": ""}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, True, True),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ("auto", {"TERM": "dumb"}, False, False),
        ("always", {"NO_COLOR": "1"}, True, True),
        ("never", {"FORCE_COLOR": "1"}, False, False),
    ],
)
def test_colour(choice, environ, on_terminal, elsewhere):
    assert wants_color(choice, Terminal(), environ) is on_terminal
    assert wants_color(choice, io.StringIO(), environ) is elsewhere
