"""Outside runs, code beside instrument() sees what it sees without: warnings, imports."""

import subprocess
import sys
import textwrap
import zipfile

INSTRUMENTED = "import stoppable; stoppable.instrument()\n"


def run(tmp_path, code, *options):
    """Execute a file, and return what it printed."""
    file = tmp_path / "program.py"
    file.write_text(INSTRUMENTED + textwrap.dedent(code))
    command = [sys.executable, *options, file]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr


def test_a_warning_of_popen_names_the_line_that_called_it(tmp_path):
    code = 'import subprocess\nsubprocess.Popen(["true"], text=True).wait()\n'
    assert "program.py:3: EncodingWarning" in run(tmp_path, code, "-X", "warn_default_encoding")


def test_a_missing_library_is_an_import_error_beside_a_finder_of_the_old_kind(tmp_path):
    """As the importer of six before 1.16, which several packages vendor."""
    code = """\
    import sys, warnings
    warnings.simplefilter("ignore")
    class Old:
        def find_module(self, fullname, path=None):
            return None
    sys.meta_path[:] = [finder for finder in sys.meta_path if "stoppable" in type(finder).__module__] + [Old()]
    try:
        import uvloop
    except ImportError:
        print("an import error")
    """
    assert "an import error" in run(tmp_path, code)


def test_a_loader_that_several_modules_share_patches_only_the_module_that_is_meant(tmp_path):
    """A zip file is one loader for all modules of a folder."""
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as app:
        app.writestr("anyio/__init__.py", "")
        app.writestr("anyio/_backends/__init__.py", "")
        app.writestr(
            "anyio/_backends/_asyncio.py",
            "class AsyncIOBackend:\n    @classmethod\n    async def run_sync_in_worker_thread(cls): pass\n",
        )
        app.writestr("anyio/_backends/_trio.py", "")
    code = """\
    import sys
    sys.path.insert(0, "app.zip")
    import anyio._backends._asyncio as patched
    import anyio._backends._trio
    print(patched.AsyncIOBackend.run_sync_in_worker_thread.__func__.__wrapped__)
    """
    assert "run_sync_in_worker_thread" in run(tmp_path, code)
