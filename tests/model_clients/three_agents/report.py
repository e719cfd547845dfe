"""A script that asks a model four questions at a time, with requests and a pool, and saves the answers by a command."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import requests


def ask(question):
    answer = requests.post(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json={"model": "gpt-5-mini", "messages": [{"role": "user", "content": question}]},
        timeout=60,
    )
    return answer.json()["choices"][0]["message"]["content"]


def main():
    with ThreadPoolExecutor(4) as pool:
        for chapter in range(10):
            texts = list(pool.map(ask, [f"chapter {chapter}, part {part}" for part in range(4)]))
            subprocess.run(["sh", os.environ["SAVE"]], input="\n".join(texts), text=True, check=True)


if __name__ == "__main__":
    main()
