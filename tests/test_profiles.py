import shutil
from pathlib import Path

import pytest
import yaml

from lt_lib import profiles
from lt_lib._home import project_root
from lt_lib.data.cifar import SETS
from lt_lib.runs import config_from_profile

FOLDER = Path(__file__).parent.parent / "notebooks" / "profiles"
SHIPPED = ("digits", "fashion", "cifar10", "paper")  # readers may have put files of their own beside them


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Returns a function that writes a changed copy of the digits profile as `mine`."""
    shutil.copytree(FOLDER, tmp_path / "notebooks" / "profiles")
    monkeypatch.setenv("LT_HOME", str(tmp_path))

    def change(text=None, drop=None, **entries):
        settings = yaml.safe_load((FOLDER / "digits.yaml").read_text()) | entries
        settings.pop(drop, None)
        path = tmp_path / "notebooks" / "profiles" / "mine.yaml"
        path.write_text(yaml.safe_dump(settings) + (text or ""))

    return change


@pytest.mark.parametrize("notebook", [None, *profiles.PAGES])
@pytest.mark.parametrize("name", SHIPPED)
def test_each_profile_is_valid_for_each_notebook(name, notebook):
    profile = profiles.load(name, notebook=notebook)
    assert profile.name == name
    assert profile.training.epochs >= 1


def test_every_profile_sets_the_same_names():
    names = [sorted(yaml.safe_load((FOLDER / f"{name}.yaml").read_text())) for name in SHIPPED]
    assert all(found == sorted({*profiles.COMMON, "notebooks"} - set(profiles.OPTIONAL)) for found in names)


def test_digits_runs_on_a_cpu():
    profile = profiles.load("digits", notebook="03_training_dynamics")
    assert (profile.data, profile.device, profile.imbalance, profile.seeds) == ("digits", "cpu", 10, 10)
    assert profile.switch_share == 0.8
    assert profiles.load("fashion").largest == 5500
    assert profiles.load("fashion").calibration == 500


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"imbalence": 10}, "Did you mean `imbalance`"),
        ({"seeds": "10"}, "`seeds` must be a whole number"),
        ({"seeds": 0}, "`seeds` must be a whole number from 1"),
        ({"imbalance": 0.5}, "`imbalance` must be a number from 1"),
        ({"calibration": 1.5}, "`calibration` must be"),
        ({"data": "digit"}, "Did you mean `digits`"),
        ({"precision": "fp16"}, "`precision` must be one of bfloat16, float32"),
        ({"net": {"dept": 8}}, "Did you mean `depth`"),
        ({"net": {"depth": 9}}, r"`depth` must be 6n \+ 2 .*found 9\. The nearest is 8"),
        ({"net": {"width": "8"}}, "`width` must be a whole number"),
        ({"net": 8}, "`net` must be a mapping"),
        ({"training": {"epoch": 8}}, "Did you mean `epochs`"),
        ({"training": {"lr": "5e-4"}}, "read as text"),
        ({"training": {"device": "cpu"}}, "an entry of training"),
        ({"notebooks": {"03_training": {}}}, "Did you mean `03_training_dynamics`"),
        ({"notebooks": {"03_training_dynamics": {"switch_shar": 0.5}}}, "Did you mean `switch_share`"),
        ({"notebooks": {"03_training_dynamics": {"switch_share": 1.5}}}, "`switch_share` must be"),
        ({"notebooks": {"01_equal_loss": {"switch_share": 0.5}}}, "a setting in mine.yaml, 01_equal_loss"),
        ({"notebooks": []}, "must map notebooks to settings"),
    ],
)
def test_a_wrong_setting_is_one_sentence_wherever_it_stands(write, entries, sentence):
    write(**entries)
    with pytest.raises(ValueError, match=sentence):
        profiles.load("mine")  # no notebook: the whole file is checked all the same


def test_a_missing_or_doubled_setting_is_refused(write):
    write(drop="seeds")
    with pytest.raises(ValueError, match=r"mine\.yaml lacks `seeds`"):
        profiles.load("mine")
    write("seeds: 3\n")
    with pytest.raises(ValueError, match="`seeds` stands twice"):
        profiles.load("mine")
    write("seeds: [\n")
    with pytest.raises(ValueError, match=r"mine\.yaml is not valid YAML"):
        profiles.load("mine")


def test_a_notebook_replaces_common_settings_and_overrides_come_last(write):
    section = {"switch_share": 0.5, "alpha": 2.0, "seeds": 4, "training": {"epochs": 7}}
    write(notebooks={"03_training_dynamics": section})
    common = profiles.load("mine", notebook="01_equal_loss")
    page = profiles.load("mine", notebook="03_training_dynamics", alpha=3, training={"batch": 16})
    assert (common.seeds, common.training.epochs) == (10, profiles.load("digits").training.epochs)
    assert (page.seeds, page.training.epochs, page.training.batch) == (4, 7, 16)
    assert page.training.lr == common.training.lr
    assert (page.alpha, page.switch_share) == (3, 0.5)


def test_a_notebook_needs_its_own_settings(write):
    write(notebooks={})
    with pytest.raises(ValueError, match=r"lacks `switch_share`"):
        profiles.load("mine", notebook="03_training_dynamics")


SECTION = {"switch_share": 0.5, "alpha": 2.0}


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"alpha": 1.0}, "mine.yaml, 03_training_dynamics lacks `switch_share`"),
        ({**SECTION, "training": {"epochs": 2}}, "03_training_dynamics: `warmup` must be shorter .* of 2 ep"),
        (
            {**SECTION, "net": {"scale": 9.0}},
            "03_training_dynamics: `scale` does not apply to the head `linear`",
        ),
        ({**SECTION, "net": {"depth": 9}}, r"03_training_dynamics: `depth` must be 6n \+ 2"),
        ({**SECTION, "training": {"lr": "5e-4"}}, "03_training_dynamics: .*read as text"),
    ],
)
def test_a_section_is_checked_with_the_common_settings_wherever_it_stands(write, section, sentence):
    write(notebooks={"03_training_dynamics": section})
    for check in (profiles.load, profiles.check_ready, lambda name: profiles.load(name, "01_equal_loss")):
        with pytest.raises(ValueError, match=sentence):
            check("mine")


def test_a_section_may_change_one_of_two_settings_that_belong_together(write):
    training = profiles.load("digits").training
    common = {**training, "epochs": 100, "order": None}
    write(training=common, notebooks={"03_training_dynamics": {**SECTION, "training": {"warmup": 50}}})
    assert profiles.load("mine", "03_training_dynamics").training.warmup == 50  # 36 epochs are the default
    assert profiles.load("mine", training={"warmup": 60}).training.warmup == 60


def test_every_page_is_checked_before_any_runs(write):
    sections = yaml.safe_load((FOLDER / "digits.yaml").read_text())["notebooks"]
    write(notebooks={name: section for name, section in sections.items() if name != "09_bulk_walk"})
    profiles.load("mine", "03_training_dynamics")
    with pytest.raises(ValueError, match=r"mine\.yaml, 09_bulk_walk lacks `hessian_images`"):
        profiles.check_ready("mine")
    wrong = {"04_what_it_optimises": {"many_warmup": 8}, "08_hessian_spikes": {"lengths": [2, 24]}}
    for name, changes in wrong.items():
        write(notebooks={**sections, name: {**sections[name], **changes}})
        with pytest.raises(ValueError, match=f"{name}: `warmup` must be shorter than the training of"):
            profiles.check_ready("mine")


def test_settings_that_few_need_may_be_left_out(write):
    assert (profiles.load("digits").draw, profiles.load("digits").size) == ("generator", None)
    write(draw="cao2019", size=32, memory_limit=0, calibration=0)
    config = config_from_profile(profiles.load("mine"), "ce", 0)
    assert (config.data["draw"], config.data["size"], config.data["memory_limit"]) == ("cao2019", 32, 0)
    write(draw="cao")
    with pytest.raises(ValueError, match="`draw` must be one of cao2019, generator"):
        profiles.load("mine")


def test_unknown_names_are_refused():
    with pytest.raises(
        ValueError, match=r"must be one of .*found `digit`\. Did you mean `digits`\?"
    ) as error:
        profiles.load("digit")
    assert all(name in str(error.value) for name in SHIPPED)
    with pytest.raises(ValueError, match="`notebook` must be one of"):
        profiles.load("digits", notebook="99_none")
    with pytest.raises(ValueError, match="Did you mean `seeds`"):
        profiles.load("digits", seed=3)


def test_a_profile_cannot_change_and_names_what_it_has():
    profile = profiles.load("digits")
    with pytest.raises(AttributeError):
        profile.seeds = 3
    with pytest.raises(AttributeError):
        profile.training.epochs = 3
    with pytest.raises(AttributeError, match="no setting `switch_share`"):
        _ = profile.switch_share  # of notebook 03 alone
    with pytest.raises(AttributeError, match=r"`epoch` is not set here; there are .*epochs"):
        _ = profile.training.epoch


@pytest.mark.parametrize("section", ["[1]", "abc"])
def test_a_section_that_is_no_mapping_is_one_sentence(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "notebooks" / "profiles"
    folder.mkdir(parents=True)
    text = (project_root() / "notebooks" / "profiles" / "digits.yaml").read_text(encoding="utf-8")
    head = text.split("  03_training_dynamics:")[0]
    (folder / "mine.yaml").write_text(f"{head}  03_training_dynamics: {section}\n", encoding="utf-8")
    monkeypatch.setenv("LT_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="must map names to settings; found"):
        profiles.load("mine")


@pytest.mark.parametrize(("name", "title"), [("cifar10", "CIFAR-10"), ("paper", "CIFAR-100")])
def test_a_profile_whose_data_are_not_there_says_what_to_get(
    name: str, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LT_DATA", str(tmp_path))
    with pytest.raises(
        ValueError, match=rf"`{name}` cannot run yet\. {title} must lie in .*{tmp_path}.*Unpack"
    ):
        profiles.check_ready(name)
    files = SETS[profiles.load(name).data]
    (tmp_path / files.folder).mkdir()
    for file in (*files.train, *files.test, *files.meta):
        (tmp_path / files.folder / file).touch()
    profiles.check_ready(name)  # nothing is read yet
    profiles.check_ready("digits")
